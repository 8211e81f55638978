"""Numbered files: whole or not there, made once, resumed after a kill, never mixed with those of another request."""

import json
from pathlib import Path

import pytest

from bfn._utils.files import atomic_write
from bfn._utils.pieces import Pieces, Processes, write_pieces
from messages import refused


def write(rows: range, path: Path, advance) -> None:
    atomic_write(path, json.dumps([*rows]))
    advance(len(rows))


def items(pieces: Pieces) -> list[int]:
    return [item for path in pieces.paths for item in json.loads(path.read_text())]


def test_items_are_in_order_and_a_file_is_made_once(tmp_path):
    pieces = Pieces(tmp_path, 10, 4, ".json")
    assert write_pieces(pieces, write, {"seed": 1}) == 3
    assert items(pieces) == [*range(10)]
    assert [len(pieces.rows(i)) for i in range(3)] == [4, 4, 2]
    assert write_pieces(pieces, write, {"seed": 1}) == 0


def test_what_was_killed_goes_on(tmp_path):
    pieces = Pieces(tmp_path, 10, 2, ".json")

    def killed(rows: range, path: Path, advance) -> None:
        if rows.start == 4:
            (path.parent / f".{path.name}.abc.tmp").write_text("half")
            raise SystemExit
        write(rows, path, advance)

    with pytest.raises(SystemExit):
        write_pieces(pieces, killed, {})
    assert pieces.missing == [2, 3, 4]
    assert write_pieces(pieces, write, {}) == 3
    assert items(pieces) == [*range(10)]
    assert not [*tmp_path.glob(".*.tmp")]


def test_an_interrupt_says_how_to_go_on(tmp_path, capsys):
    def interrupted(rows: range, path: Path, advance) -> None:
        if rows.start:
            raise KeyboardInterrupt
        write(rows, path, advance)

    with pytest.raises(KeyboardInterrupt):
        write_pieces(Pieces(tmp_path, 4, 2, ".json"), interrupted, {})
    assert f"1 of 2 files are in {tmp_path}: the same command goes on" in capsys.readouterr().out


def test_another_request_is_refused_before_anything_is_written(tmp_path):
    write_pieces(Pieces(tmp_path, 4, 2, ".json"), write, {"seed": 1})
    for n, request in ((4, {"seed": 2}), (6, {"seed": 1}), (4, {"seed": 1, "label": "3"})):
        message = r"of another request, with (seed 1 and not 2|n 4 and not 6|label None)"
        refused(message, write_pieces, Pieces(tmp_path, n, 2, ".json"), write, request)
    (tmp_path / "samples.json").write_text("{")
    refused("damaged", write_pieces, Pieces(tmp_path, 4, 2, ".json"), write, {"seed": 1})


def test_who_is_here_is_what_the_launcher_says(monkeypatch):
    assert Processes.here() == Processes(0, 1)
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    here = Processes.here()
    assert (here.index, here.count, here.local_index, here.main) == (3, 4, 1, False)
    assert here.own(range(10)) == [3, 7]
    monkeypatch.setenv("RANK", "x")
    refused("RANK", Processes.here)
