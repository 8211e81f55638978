"""Progress: a bar on a terminal, lines elsewhere, JSON for programs, nothing where nothing was asked for."""

import json
import sys

import pytest

from bfn._utils import progress
from bfn._utils.progress import Progress, over, say, style


@pytest.fixture(autouse=True)
def no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the same process may have imported the kernel of notebooks."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def work(shown: progress.Shown, monkeypatch, seconds: float = 6.0) -> None:
    """A hundred units of work, ten at a time, of some seconds each by the clock."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(100, "sampling", "sample", shown, start=20) as bar:
        for _ in range(8):
            now[0] += seconds
            bar.note(loss="0.5")
            bar.update(10)


def test_a_pipe_gets_a_line_each_interval_and_one_at_the_end(capsys, monkeypatch):
    work(True, monkeypatch)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sampling: 40 of 100 samples (40 %) in 12 s, 1.67 a second, 36 s left, loss 0.5"
    assert lines[-1] == "sampling: 100 of 100 samples (100 %) in 48 s, 1.67 a second, loss 0.5"
    assert len(lines) == 5


def test_what_is_done_within_the_interval_says_nothing(capsys, monkeypatch):
    work(True, monkeypatch, seconds=1.0)
    assert capsys.readouterr() == ("", "")


def test_programs_get_json_lines_on_standard_error(capsys, monkeypatch):
    work("json", monkeypatch)
    out, err = capsys.readouterr()
    first = json.loads(err.splitlines()[0])
    assert out == ""
    assert first == {
        "progress": "sampling", "done": 40, "total": 100, "unit": "sample", "seconds": 12.0, "seconds_left": 36.0,
        "loss": "0.5",
    }  # fmt: skip
    say("done", "json")
    assert json.loads(capsys.readouterr().out) == {"kind": "message", "text": "done"}


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    assert style(True) == "bar"
    with Progress(4, "sampling", "sample", stays=True) as bar:
        bar.update(0.5)
        bar.update(3.5)
    assert "sampling: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["bar", "json"])
def test_the_total_can_be_changed(style, capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0)
    with Progress(1000, "fitting", "step", style, stays=True) as bar:
        bar.set_total(4)
        bar.update(2)
    assert ("2/4" if style == "bar" else '"done": 2, "total": 4') in capsys.readouterr().err


@pytest.mark.parametrize("shown", [False, True])
def test_items_pass_in_order(shown, capsys):
    assert list(over(range(5), "reading", "image", shown)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
