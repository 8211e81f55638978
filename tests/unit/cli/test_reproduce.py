"""``bfn reproduce``: from the command line to the folder, and wrong input."""

import json

import pytest

from bfn.cli import main


def test_a_report_from_the_command_line(models, tmp_path, capsys) -> None:
    code = main(
        ["reproduce", "cs-trajectories", "--on", "bundled", "--model", "text8", "--n", "2", "--nfe", "2", "4",
         "--out", str(tmp_path / "report"), "--store", str(tmp_path / "store.jsonl"), "--seed", "3"]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert out == (tmp_path / "report" / "report.md").read_text()
    assert "\nbfn reproduce cs-trajectories --on bundled --model text8 --n 2 --nfe 2 4 --seed 3\n" in out
    assert str(tmp_path) not in out


def test_results_as_json(tmp_path, capsys) -> None:
    main(["reproduce", "orders", "--nfe", "8", "16", "32", "--n", "1", "--json", "--out", str(tmp_path / "o")])
    assert set(json.loads(capsys.readouterr().out)["on"]) == {"continuous", "discrete"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fid-nef"], "did you mean 'fid-nfe'?"),
        (["fid-nfe", "--n", "0"], "--n 0: expected at least 1"),
        (["sa-nfe", "--nfe", "0"], "--nfe 0: expected at least 1"),
        (["sa-nfe", "--ceiling", "-1"], "--ceiling -1: expected a number of calls"),
        (["fid-nfe", "--checkpoint", "nowhere.pt"], "--checkpoint nowhere.pt: no such file"),
        (["fid-nfe", "--on", "official"], "official: needs --checkpoint FILE"),
        (["sa-nfe", "--solvers", "unipc33"], "did you mean 'unipc3'?"),
        (
            ["eta-discrete", "--solvers", "unipc3"],
            "eta-discrete has the paper's solvers only; fid-nfe, sa-nfe, samples take",
        ),
        (["sa-nfe", "--solvers", "unipc3", "--paper-only"], "--solvers unipc3 with --paper-only: give one of them"),
        (["sa-nfe", "--on", "bundled", "--solvers", "unipc3", "--nfe", "0"], "--nfe 0: expected at least 1"),
        (["fid-nfe", "--on", "bundled", "--model", "text8"], "text8: a model of text"),
    ],
)
def test_wrong_input(arguments, message, refused, tmp_path) -> None:
    assert message in refused("reproduce", *arguments, "--out", tmp_path / "report", "--store", tmp_path / "s")
