"""``bfn models``, ``bfn info`` and ``bfn solvers``."""

import json

import bfn
from bfn import solvers
from bfn.cli import main
from bfn.storage import models as storage
from bfn_lab.bench import Figure
from commands import run


def test_models_shows_what_is_bundled_with_its_quality(models, monkeypatch, capsys, values):
    monkeypatch.setattr(storage, "bundled", lambda: (str(models / "images"), str(models / "text")))
    run("models")
    header, images, text, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "data", "measured"]
    assert "1x8x8 continuous, 3 classes" in images
    assert "bits a dimension 1.235" in images
    assert "20 discrete, 27 values" in text
    assert "not measured" in text

    first, second = values("models")
    assert first["card"]["quality"] == {"bits a dimension": 1.23456}
    assert second["flow"]["n_classes"] == 27
    monkeypatch.setattr(storage, "bundled", lambda: ())
    run("models")
    assert "no models are bundled" in capsys.readouterr().out


def test_info_tells_size_and_what_auto_picks(models, capsys, values):
    model = bfn.load(models / "text")
    told = values("info", models / "text", "--nfe", 4, 9)
    assert told["n_parameters"] == sum(p.numel() for p in model.parameters())
    for choice, nfe in zip(told["auto"], (4, 9), strict=True):
        planned = solvers.plan(model, "auto", nfe)
        assert choice["plan"] == str(planned)
        assert (choice["nfe"], choice["solver"], choice["grid"]) == (nfe, planned.solver.name, str(planned.solver.grid))
        assert (choice["first"], choice["last"]) == (planned.table.times[0], planned.table.times[-1])

    run("info", models / "images")
    shown = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines() if line and not line.startswith(" "))
    assert rows["recipe"] == "digits"
    assert rows["classes"] == "0 (33.3 %), 1 (33.3 %), 2 (33.3 %)"
    assert rows["range"].startswith("-1 to 1")
    assert rows["network"].startswith("unet")
    for nfe in (5, 10, 20, 50):
        assert f"  {solvers.plan(bfn.load(models / 'images'), 'auto', nfe)}\n" in shown
    assert "docs/results/few-step.md" in shown


def test_info_tells_the_alphabet_and_tuned_tables(models, capsys):
    run("info", models / "text")
    assert "alphabet     ' abcdefghijklmnopqrstuvwxyz', 27 symbols" in capsys.readouterr().out
    run("info", "digits", "--nfe", "5")
    shown = capsys.readouterr().out
    assert "tuned for 5 calls" in shown
    assert "  a tuned table: 5 calls from" in shown


def test_solvers_lists_them_all(capsys, values):
    told = {row["name"]: row for row in values("solvers")}
    assert list(told) == solvers.names()
    assert told["fast-sde"]["dial"]
    shown = {key: told["bfn-solver2"][key] for key in ("dial", "kinds", "order")}
    assert shown == {"dial": False, "kinds": ["discrete"], "order": {"discrete": 2}}
    assert told["fast-ode"]["order"] == {"continuous": 3, "discrete": 4}
    run("solvers")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(told) + 2
    assert "bfn tune" in lines[-1]
    assert any(line.split()[:4] == ["fast-ode", "continuous", "discrete", "3/4"] for line in lines)


def test_bench_tells_figures_and_whether_they_are_as_they_are_to_be(monkeypatch, capsys):
    good = Figure("kernel", "a row", 0.7, 0.6, 0.8, 9, goal=0.6, side="at least")
    bad = Figure("sampling", "batch 1", 1.3, 1.2, 1.4, 9, goal=1.15)
    parts = {"kernel": lambda quick: iter([good]), "sampling": lambda quick: iter([bad])}
    monkeypatch.setattr("bfn_lab.bench.PARTS", parts)
    assert main(["bench", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(figure["name"], figure["met"]) for figure in told] == [("a row", True), ("batch 1", False)]
    run("bench", "--only", "kernel")
    out = capsys.readouterr().out
    assert "a row" in out
    assert "at least 0.6: met" in out
    assert "1 figures, 0 of them miss their goal" in out
    assert main(["bench", "--only", "kernels"]) == 2
    assert "did you mean 'kernel'" in capsys.readouterr().err
