"""``bfn compare``: tables, files, resuming, blind pairs, and wrong input."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.cli import main
from bfn.quality import comparison


@pytest.fixture(autouse=True)
def _home(tmp_path_factory, monkeypatch):
    """A cache of its own, outside of what tests look at."""
    monkeypatch.setenv("BFN_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    path = tmp_path_factory.mktemp("cloud") / "cloud.npy"
    np.save(path, torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).numpy())
    return path


def run(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def test_a_comparison_is_printed_and_written(models, cloud, tmp_path, capsys) -> None:
    files = [tmp_path / name for name in ("q.json", "q.md", "q.png")]
    code = run(
        models / "vectors", "--data", cloud, "--solvers", "bfn", "bfn-solver++2", "fast-sde", "--nfe", 2, 4, "--n", 30,
        "--t-start", 0.01, 0.001, "--g", 1, "--repeats", 2,
        "--json", files[0], "--markdown", files[1], "--plot", files[2],
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    rows = [line.split("  ")[0] for line in out.splitlines()]
    samplers = ("bfn", "bfn-solver++2, eta 0.01", "bfn-solver++2, eta 0.001", "fast-sde, g 1", "real data, 30 samples")
    assert set(rows) >= set(samplers)
    assert "best by Frechet distance" in out
    report = json.loads(files[0].read_text())
    assert len(report["records"]) == 8
    assert report["records"][0]["seeds"] == [0, 1]
    assert report["metric"] == "values"
    assert files[1].read_text().startswith("# Samplers of ")
    assert Image.open(files[2]).format == "PNG"


def test_an_interrupt_keeps_and_shows_what_is_measured(models, cloud, tmp_path, capsys, monkeypatch) -> None:
    draw, calls = comparison.draw, []

    def stop_at_the_third(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw(*arguments, **options)

    monkeypatch.setattr(comparison, "draw", stop_at_the_third)
    options = (models / "vectors", "--data", cloud, "--solvers", "bfn", "auto", "--nfe", 2, 3, "--n", 20)
    assert run(*options, "--json", tmp_path / "q.json") == 130
    out, error = capsys.readouterr()
    assert "2 of 4 settings are measured and kept in" in error
    assert "best by" in out
    assert run(*options, "--json", tmp_path / "q.json") == 0
    assert len(calls) == 3 + 2
    assert len(json.loads((tmp_path / "q.json").read_text())["records"]) == 4


def test_few_samples_leave_a_measure_out_with_a_warning(models, capsys) -> None:
    assert run(models / "images", "--data", "digits", "--solvers", "bfn", "--nfe", 2, "--n", 12) == 0
    out, error = capsys.readouterr()
    assert "n=12: the Frechet distance of 64 features needs more than 64 samples" in error
    assert "asked class" in out


def test_blind_pairs_are_written_and_scored(models, tmp_path, capsys) -> None:
    folder = tmp_path / "pairs"
    options = (models / "images", "--blind", folder)
    assert run(*options, "--solvers", "bfn", "auto", "--nfe", 3, "--n", 5) == 0
    assert len(list(folder.glob("*.png"))) == 5
    answers = folder / "answers.csv"
    answers.write_text("pair,answer\n1,left\n2,right\n3,left\n4,\n5,right\n")
    capsys.readouterr()
    assert run(*options, "--score", answers) == 0
    out = capsys.readouterr().out
    assert "of 4 pairs, 1 skipped" in out
    assert "%" in out


def test_text_by_default_compares_the_paper_s_solvers(models, story, capsys) -> None:
    story.write_text(5 * story.read_text())
    assert run(models / "text", "--data", story, "--nfe", 2, "--n", 10) == 0
    out = capsys.readouterr().out
    solvers = ("auto", "bfn", "sde-bfn-solver2", "bfn-solver2", "real data")
    assert all(name in out for name in (*solvers, "spelling accuracy", "4-gram divergence"))


def test_wrong_input(models, cloud, tmp_path, refused) -> None:
    vectors, images, data = models / "vectors", models / "images", ("--data", cloud)
    for arguments, message in [
        ((vectors, *data, "--solvers", "nonsense"), "expected one of"),
        ((vectors, *data, "--solvers", "bfn-solver2"), "is for discrete data"),
        ((vectors, *data, "--metric", "values", "--n", 2), "singular"),
        ((vectors, *data, "--metric", "mnist"), "does not fit"),
        ((vectors,), "say what real data"),
        ((images, "--data", cloud), "not images, and the model's data are images of shape (1, 8, 8)"),
        ((vectors, *data, "--solvers", "bfn", "--t-start", 0.1), "none of bfn takes it"),
        ((vectors, *data, "--guidance", 2), "knows no classes"),
        ((vectors, *data, "--plot", tmp_path / "q.txt"), "expected a .png"),
        ((vectors, *data, "--json", tmp_path), "is a directory"),
        ((vectors, "--blind", tmp_path / "p", "--solvers", "bfn", "auto", "--nfe", 2), "neither images nor text"),
        ((images, "--blind", tmp_path / "p", "--solvers", "bfn", "--nfe", 2), "two solvers"),
        ((images, "--score", tmp_path / "none.csv"), "key.json"),
    ]:
        assert message in refused("compare", *arguments), arguments
