"""``bfn likelihood``: the figures are those of ``model.log_likelihood``, on data that are coded as the model's."""

import math

import pytest
import torch

import bfn
import tiny
from bfn import data
from commands import run


@pytest.mark.parametrize("method", ["ode", "bound", "n-step"])
def test_of_text_in_nats_and_bits(models, story, values, method):
    options = ("--data", story, "--part", "all", "--n", 3, "--nfe", 6, "--seed", 3, "--method", method)
    report = values("likelihood", models / "text", *options)
    model = bfn.load(models / "text")
    x = data.load(story, "all", tokenizer=data.Alphabet(tiny.ALPHABET)).tiles(20, 3)
    expected = model.log_likelihood(x, method, 6, generator=torch.Generator().manual_seed(3))
    (result,) = report["results"].values()
    assert result["log_prob"] == pytest.approx(expected.log_prob.tolist(), rel=1e-9)
    assert result["nats"]["value"] == pytest.approx(-float(expected.log_prob.mean()), rel=1e-6)
    assert result["bits"]["total"]["value"] == pytest.approx(result["nats"]["value"] / 20 / math.log(2), rel=1e-6)
    assert result["nfe"] == 6
    assert report["unit"] == "bits per character"
    assert report == values("likelihood", models / "text", *options)


@pytest.fixture
def measured(models, pictures, values):
    """Run the command on images and return its values."""
    return lambda *options: values("likelihood", models / "images", "--data", pictures, "--part", "all", *options)


def test_n_steps_of_images_with_the_usual_and_the_best_variance(measured):
    report = measured("--n", 10, "--nfe", 6, "--method", "n-step")
    usual, best = report["results"]["n-step"], report["results"]["n-step, best variance"]
    assert (report["n"], report["with_labels"]) == (10, True)
    assert best["nats"]["value"] < usual["nats"]["value"]
    assert best["bits"]["reconstruction"] == usual["bits"]["reconstruction"]


def test_grey_levels_and_adaptive_steps(measured):
    options = ("--n", 2, "--divergence", "hutchinson")
    levels = measured(*options, "--nfe", 6, "--levels", 256, "--probes", 2, "--importance", 2)["results"]["ode"]
    assert (levels["is_bound"], levels["is_density"], levels["nfe"]) == (True, False, 12)
    adaptive = measured(*options, "--tolerance", 5)["results"]["ode"]
    assert (adaptive["is_bound"], adaptive["log_prob_error"]) == (False, [None, None])
    one = measured("--n", 1, "--nfe", 5, "--method", "bound")["results"]["bound"]
    assert one["nats"]["low"] is None


def test_what_takes_long_is_said_before(models, pictures, capsys, monkeypatch):
    monkeypatch.setattr("bfn.cli.evaluate.MANY_PASSES", 300)
    options = ("likelihood", models / "images", "--data", pictures, "--part", "all", "--n", 1, "--nfe", 5)
    run(*options)
    assert "1 samples, 5 calls, 64 dimensions: 320 backward passes; --divergence" in capsys.readouterr().err
    run(*options, "--divergence", "hutchinson")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tolerance", 0), "bfn: tolerance=0.0: expected a positive number"),
        (("--nfe", 2), "bfn: nfe=2: expected a whole number from 5"),
        (("--method", "bound", "--importance", 2), "bfn: importance with method='bound': it is an option of"),
        (("--levels", 17), "bfn: levels=17: the data contain"),
        (("--method", "n-step", "--n", 40), "the best variance needs other samples, take fewer"),
    ],
)
def test_wrong_input(models, pictures, refused, options, message):
    assert message in refused("likelihood", models / "images", "--data", pictures, "--part", "all", *options)


def test_data_of_another_kind(models, story, refused):
    assert "is text, and the model is one of images" in refused("likelihood", models / "images", "--data", story)
