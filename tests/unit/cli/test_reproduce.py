"""``bfn reproduce``: from the command line to the folder, and wrong input."""

import pytest

from commands import run


def test_a_report_from_the_command_line(tmp_path, capsys) -> None:
    words = "reproduce cs-trajectories --on bundled --model text8 --n 2 --nfe 2 4"
    run(*words.split(), "--out", tmp_path / "report", "--store", tmp_path / "store.jsonl", "--seed", 3)
    out = capsys.readouterr().out
    assert out == (tmp_path / "report" / "report.md").read_text()
    assert f"\nbfn {words} --seed 3\n" in out
    assert str(tmp_path) not in out


def test_results_as_json(tmp_path, values) -> None:
    told = values("reproduce", "orders", "--nfe", 8, 16, 32, "--n", 1, "--out", tmp_path / "o")
    assert set(told["on"]) == {"continuous", "discrete"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fid-nef"], "did you mean 'fid-nfe'?"),
        (["fid-nfe", "--n", "0"], "--n 0: expected at least 1"),
        (["sa-nfe", "--ceiling", "-1"], "--ceiling -1: expected a number of calls"),
        (["fid-nfe", "--checkpoint", "nowhere.pt"], "--checkpoint nowhere.pt: no such file"),
        (["fid-nfe", "--on", "official"], "official: needs --checkpoint FILE"),
        (["sa-nfe", "--solvers", "unipc33"], "did you mean 'unipc3'?"),
        (
            ["eta-discrete", "--solvers", "unipc3"],
            "eta-discrete has the paper's solvers only; fid-nfe, sa-nfe, samples",
        ),
        (["sa-nfe", "--solvers", "unipc3", "--paper-only"], "--solvers unipc3 with --paper-only: give one of them"),
        (["fid-nfe", "--on", "bundled", "--model", "text8"], "text8: a model of text"),
    ],
)
def test_wrong_input(arguments, message, refused, tmp_path) -> None:
    assert message in refused("reproduce", *arguments, "--out", tmp_path / "report", "--store", tmp_path / "s")
