from pathlib import Path

import pytest
import torch

from bfn._utils.files import home
from bfn.data.loading import load
from bfn.quality.features import classify, load_classifier
from bfn.quality.judge_choice import Digits


def blocks(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes that a few steps can learn: a bright block at one of ten places."""
    labels = torch.randint(10, (n,), generator=torch.Generator().manual_seed(seed))
    images = torch.full((n, 1, 28, 28), -1.0)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 5)
        image[0, 14 * row : 14 * row + 14, 5 * column + 2 : 5 * column + 7] = 1.0
    return images, labels


def test_training_learns_repeats_and_leaves_the_global_generator(tool) -> None:
    images, labels = blocks(300, 0)
    before = torch.get_rng_state()
    losses: list[float] = []
    first, second = (
        tool("train_classifier").train_classifier(
            images, labels, n_epochs=3, batch_size=50, on_epoch=lambda _, loss: losses.append(loss)
        )
        for _ in range(2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert losses[:3] == losses[3:]
    assert losses[2] < losses[0] / 2
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_save_and_load_in_float16(tmp_path: Path, tool) -> None:
    model = load_classifier()
    path = tmp_path / "model.safetensors"
    tool("train_classifier").save_classifier(model, path, {"data": "none"})
    assert path.stat().st_size < 1_000_000
    images, _ = blocks(5, 0)
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
