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
from bfn.interop.official import convert
from bfn.likelihood.bits import held_out_bits
from commands import run


def test_bits_of_text_are_the_losses_over_ln_2(models, story, values, capsys):
    options = ("evaluate", models / "text", "--data", story, "--part", "all", "--seed", 3, "--batch", 1000)
    report = values(*options, "--n-steps", 5, 50)
    # The file has fewer symbols than the model: they keep the model's numbers.
    x = data.load(story, "all", tokenizer=data.Alphabet(tiny.ALPHABET)).tiles(20)
    for steps, found in {None: report, **{int(steps): parts for steps, parts in report["n_steps"].items()}}.items():
        generator = torch.Generator().manual_seed(3)
        bits = held_out_bits(bfn.load(models / "text"), x, n_steps=steps, batch=1000, generator=generator)
        for name, estimate in bits.items():
            assert found[name] == pytest.approx(estimate.asdict(), rel=1e-6)
    assert (report["n"], report["unit"], list(report["n_steps"])) == (len(x), "bits per character", ["5", "50"])
    assert report["transmission"] == values(*options)["transmission"]
    run(*options, "--n-steps", 5)
    first, *rest = capsys.readouterr().out.splitlines()
    assert "bits per character" in first
    parts = ["transmission", "reconstruction", "total", "5-step transmission", "5-step reconstruction", "5-step total"]
    assert [line[:26].strip() for line in rest] == parts
    assert all("[" in line for line in rest)


@pytest.mark.parametrize("kind", ["images", "binary"])
def test_images_of_a_file_in_the_form_the_model_takes(kind, models, pictures, values):
    options = ("evaluate", models / kind, "--data", pictures, "--part", "all", "--n", 30)
    report = values(*options)
    assert (report["n"], report["with_labels"]) == (30, kind == "images")
    assert math.isfinite(report["total"]["value"])
    assert report == values(*options)


def test_wrong_input(models, story, tmp_path, refused):
    (tmp_path / "other.txt").write_text("CAPITALS " * 100)
    np.savez(tmp_path / "large.npz", x=np.zeros((40, 9, 9), dtype=np.uint8))
    for kind, options, message in [
        ("text", (), "does not say what it was trained on"),
        ("text", ("--data", tmp_path / "other.txt"), "C"),
        ("images", ("--data", story), "is text"),
        ("images", ("--data", tmp_path / "large.npz"), "(1, 9, 9)"),
        ("text", ("--data", story, "--n-steps", 0), "--n-steps 0"),
    ]:
        assert message in refused("evaluate", models / kind, *options)


def test_a_set_that_is_not_fetched_is_not_fetched_unasked(tmp_path, refused, monkeypatch):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    model = tiny.build("text")
    model.info.card = {"settings": {"data": {"name": "text8"}}}
    model.save(tmp_path / "m")
    assert "run bfn data fetch text8" in refused("evaluate", tmp_path / "m")


def test_a_converted_checkpoint_is_given_pixels_at_the_centres_of_its_bins(tmp_path, values):
    folder = Path(__file__).parents[2] / "data" / "official-checkpoints"
    settings = json.loads((folder / "small-cases.json").read_text())["cifar10_discretized"]
    model = convert(folder / "cifar10_discretized_ema.pt", settings, tmp_path / "model")
    pictures = np.random.default_rng(0).integers(0, 256, (20, 3, 6, 6), dtype=np.uint8)
    np.save(tmp_path / "some.npy", pictures)
    report = values("evaluate", tmp_path / "model", "--data", tmp_path / "some.npy", "--part", "all", "--batch", 20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    x = (2 * torch.from_numpy(pictures)[order].float() + 1) / 256 - 1
    bits = held_out_bits(model, x, batch=20, generator=torch.Generator().manual_seed(0))
    assert report["transmission"]["value"] == pytest.approx(bits["transmission"].value, rel=1e-6)
