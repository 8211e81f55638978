"""``bfn likelihood``: the figures are those of ``model.log_likelihood``, on data that are coded as the model's."""

import json
import math

import numpy as np
import pytest
import torch

import bfn
import tiny
from bfn import data
from bfn.cli import main


def likelihood(capsys, *arguments: object) -> dict:
    assert main(["likelihood", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("the cat sat on the mat and the dog ran " * 40)
    return path


@pytest.fixture
def pictures(tmp_path):
    path = tmp_path / "some.npz"
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(path, x=x, labels=np.arange(40) % 3)
    return path


@pytest.mark.parametrize("method", ["ode", "bound", "n-step"])
def test_of_text_in_nats_and_bits(models, story, capsys, method):
    options = ("--data", story, "--part", "all", "--n", 3, "--nfe", 6, "--seed", 3, "--method", method)
    report = likelihood(capsys, models / "text", *options)
    model = bfn.load(models / "text")
    x = data.load(story, "all", tokenizer=data.Alphabet(tiny.ALPHABET)).tiles(20, 3)
    expected = model.log_likelihood(x, method, 6, generator=torch.Generator().manual_seed(3))
    (result,) = report["results"].values()
    assert result["log_prob"] == pytest.approx(expected.log_prob.tolist(), rel=1e-9)
    assert result["nats"]["value"] == pytest.approx(-float(expected.log_prob.mean()), rel=1e-6)
    assert result["bits"]["total"]["value"] == pytest.approx(result["nats"]["value"] / 20 / math.log(2), rel=1e-6)
    assert result["nfe"] == 6
    assert report["unit"] == "bits per character"
    assert report == likelihood(capsys, models / "text", *options)


def test_n_steps_of_images_with_the_usual_and_the_best_variance(models, pictures, capsys):
    options = (models / "images", "--data", pictures, "--part", "all", "--n", 10, "--nfe", 6, "--method", "n-step")
    report = likelihood(capsys, *options)
    usual, best = report["results"]["n-step"], report["results"]["n-step, best variance"]
    assert report["n"] == 10
    assert report["with_labels"]
    assert best["nats"]["value"] < usual["nats"]["value"]
    assert best["bits"]["reconstruction"] == usual["bits"]["reconstruction"]
    assert main(["likelihood", *map(str, options)]) == 0
    out = capsys.readouterr().out
    assert (
        "n-step, best variance: -log p of a density, in the units that the network sees, from above; 6 calls a sample"
        in out
    )


def test_grey_levels_and_adaptive_steps(models, pictures, capsys):
    options = (models / "images", "--data", pictures, "--part", "all", "--n", 2, "--divergence", "hutchinson")
    levels = likelihood(capsys, *options, "--nfe", 6, "--levels", 256, "--probes", 2, "--importance", 2)["results"][
        "ode"
    ]
    assert levels["is_bound"]
    assert not levels["is_density"]
    assert levels["nfe"] == 12
    adaptive = likelihood(capsys, *options, "--tolerance", 5)["results"]["ode"]
    assert not adaptive["is_bound"]
    assert adaptive["log_prob_error"] == [None, None]


def test_what_takes_long_is_said_before(models, pictures, capsys, monkeypatch):
    monkeypatch.setattr("bfn.cli.evaluate.MANY_PASSES", 300)
    options = ["likelihood", str(models / "images"), "--data", str(pictures), "--part", "all", "--n", "1", "--nfe", "5"]
    assert main(options) == 0
    assert "1 samples, 5 calls, 64 dimensions: 320 backward passes; --divergence" in capsys.readouterr().err
    assert main([*options, "--divergence", "hutchinson"]) == 0
    assert capsys.readouterr().err == ""


def test_one_sample_has_no_interval(models, pictures, capsys):
    options = (models / "images", "--data", pictures, "--part", "all", "--n", 1, "--nfe", 5, "--method", "bound")
    assert likelihood(capsys, *options)["results"]["bound"]["nats"]["low"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tolerance", 0), "bfn: tolerance=0.0: expected a positive number"),
        (("--nfe", 2), "bfn: nfe=2: expected a whole number from 5"),
        (("--n", 0), "bfn: --n 0: expected at least 1"),
        (("--method", "bound", "--importance", 2), "bfn: importance with method='bound': it is an option of"),
        (("--levels", 17), "bfn: levels=17: the data contain"),
        (("--method", "n-step", "--n", 40), "the best variance needs other samples, take fewer"),
    ],
)
def test_wrong_input(models, pictures, refused, options, message):
    assert message in refused("likelihood", models / "images", "--data", pictures, "--part", "all", *options)


def test_data_of_another_kind(models, story, refused):
    assert "is text, and the model is one of images" in refused("likelihood", models / "images", "--data", story)
