import runpy
from pathlib import Path

import pytest
import torch

from bfn._utils.files import home
from bfn.data.loading import load
from bfn.quality.features import classify, load_classifier
from bfn.quality.judge_choice import Digits


def test_save_and_load_in_float16(tmp_path: Path) -> None:
    model = load_classifier()
    path = tmp_path / "model.safetensors"
    tool = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "train_classifier.py"))
    tool["save_classifier"](model, path, {"data": "none"})
    assert path.stat().st_size < 1_000_000
    images = torch.rand(5, 1, 28, 28) * 2 - 1
    assert torch.equal(classify(images, load_classifier(path)), classify(images, model))


@pytest.mark.skipif(not (home() / "data" / "mnist").is_dir(), reason="MNIST is not fetched: bfn data fetch mnist")
def test_bundled_classifier_recognises_digits() -> None:
    images = load("mnist", "test")
    probabilities = classify(images.to_float())
    assert (probabilities.argmax(-1) == images.labels).float().mean() > 0.995
    figures = Digits(conditional=False).figures(probabilities)
    assert figures["recognised"].value > 0.98
    assert figures["class_entropy"].value > 3.31


def test_figures_by_hand() -> None:
    probabilities = torch.eye(10)[[0, 0, 1, 2]]
    probabilities[3] = torch.full((10,), 0.05)
    probabilities[3, 2] = 0.55
    figures = Digits(conditional=True).figures(probabilities, torch.tensor([0, 1, 1, 2]))
    assert figures["class_entropy"].value == pytest.approx(1.5)
    assert figures["recognised"].value == figures["asked_class"].value == 0.75
    assert figures["recognised"].low < 0.75 < figures["recognised"].high
    assert figures["confidence"].value == pytest.approx((3 + 0.55) / 4)
    assert "asked_class" not in Digits(conditional=False).figures(probabilities, torch.tensor([0, 1, 1, 2]))
