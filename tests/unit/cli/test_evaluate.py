"""``bfn evaluate``: the figures are those of the losses, on data that are coded as the model's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bfn
import tiny
from bfn import data
from bfn.cli import main
from bfn.interop.official import convert
from bfn.likelihood.bits import held_out_bits


def evaluate(capsys, *arguments: object) -> dict:
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("the cat sat on the mat and the dog ran " * 40)
    return path


def test_bits_of_text_are_the_losses_over_ln_2(models, story, capsys):
    report = evaluate(capsys, models / "text", "--data", story, "--part", "all", "--seed", 3, "--batch", 1000)
    model = bfn.load(models / "text")
    # The file has fewer symbols than the model: they keep the model's numbers.
    x = data.load(story, "all", tokenizer=data.Alphabet(tiny.ALPHABET)).tiles(20)
    bits = held_out_bits(model, x, batch=1000, generator=torch.Generator().manual_seed(3))
    assert report["n"] == len(x)
    for name in ("transmission", "reconstruction", "total"):
        assert report[name] == pytest.approx(bits[name].asdict(), rel=1e-6)
    assert report["unit"] == "bits per character"


def test_losses_of_n_steps(models, story, capsys):
    options = (models / "text", "--data", story, "--part", "all", "--seed", 3, "--batch", 1000)
    report = evaluate(capsys, *options, "--n-steps", 5, 50)
    model = bfn.load(models / "text")
    x = data.load(story, "all", tokenizer=data.Alphabet(tiny.ALPHABET)).tiles(20)
    assert list(report["n_steps"]) == ["5", "50"]
    for steps, parts in report["n_steps"].items():
        bits = held_out_bits(model, x, n_steps=int(steps), batch=1000, generator=torch.Generator().manual_seed(3))
        assert parts["total"] == pytest.approx(bits["total"].asdict(), rel=1e-6)
    # Without them nothing else changes.
    assert report["transmission"] == evaluate(capsys, *options)["transmission"]
    assert main([str(a) for a in ("evaluate", *options, "--n-steps", 5)]) == 0
    out = capsys.readouterr().out
    assert "5-step transmission" in out
    assert "5-step total" in out


@pytest.mark.parametrize("kind", ["images", "binary"])
def test_images_of_a_file_in_the_form_the_model_takes(kind, models, tmp_path, capsys):
    pictures = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "some.npz", x=pictures, labels=np.arange(40) % 3)
    report = evaluate(capsys, models / kind, "--data", tmp_path / "some.npz", "--part", "all", "--n", 30)
    assert report["n"] == 30
    assert report["with_labels"] == (kind == "images")
    assert math.isfinite(report["total"]["value"])
    assert report == evaluate(capsys, models / kind, "--data", tmp_path / "some.npz", "--part", "all", "--n", 30)


def test_people_read_three_lines_with_errors(models, story, capsys):
    assert main(["evaluate", str(models / "text"), "--data", str(story)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "bits per character" in first
    assert [line.split()[0] for line in rest] == ["transmission", "reconstruction", "total"]
    assert all("[" in line for line in rest)


def test_wrong_input(models, story, tmp_path, refused, monkeypatch):
    (tmp_path / "other.txt").write_text("CAPITALS " * 100)
    np.savez(tmp_path / "large.npz", x=np.zeros((40, 9, 9), dtype=np.uint8))
    assert "does not say what it was trained on" in refused("evaluate", models / "text")
    assert "C" in refused("evaluate", models / "text", "--data", tmp_path / "other.txt")
    assert "is text" in refused("evaluate", models / "images", "--data", story)
    assert "(1, 9, 9)" in refused("evaluate", models / "images", "--data", tmp_path / "large.npz")
    assert "--n 0" in refused("evaluate", models / "text", "--data", story, "--n", 0)
    assert "--n-steps 0" in refused("evaluate", models / "text", "--data", story, "--n-steps", 0)
    assert "no such file" in refused("evaluate", models / "text", "--data", tmp_path / "nowhere.txt")


def test_a_set_that_is_not_fetched_is_not_fetched_unasked(tmp_path, refused, monkeypatch):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    model = tiny.build("text")
    model.info.card = {"settings": {"data": {"name": "text8"}}}
    model.save(tmp_path / "m")
    assert "run bfn data fetch text8" in refused("evaluate", tmp_path / "m")


def test_a_converted_checkpoint_is_given_pixels_at_the_centres_of_its_bins(tmp_path, capsys):
    folder = Path(__file__).parents[2] / "data" / "official-checkpoints"
    settings = json.loads((folder / "small-cases.json").read_text())["cifar10_discretized"]
    model = convert(folder / "cifar10_discretized_ema.pt", settings, tmp_path / "model")
    pictures = np.random.default_rng(0).integers(0, 256, (20, 3, 6, 6), dtype=np.uint8)
    np.save(tmp_path / "some.npy", pictures)
    report = evaluate(capsys, tmp_path / "model", "--data", tmp_path / "some.npy", "--part", "all", "--batch", 20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    x = (2 * torch.from_numpy(pictures)[order].float() + 1) / 256 - 1
    bits = held_out_bits(model, x, batch=20, generator=torch.Generator().manual_seed(0))
    assert report["transmission"]["value"] == pytest.approx(bits["transmission"].value, rel=1e-6)
