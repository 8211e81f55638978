"""A model's facts: classes that are asked for and drawn, ranges that predictions are clipped to, what a person sees."""

import numpy as np
import pytest
import torch

import tiny
from bfn.core.conditions import NO_CLASS, Classes, labels_of
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.info import ModelInfo
from bfn.core.model import BFN

SHAPES = ModelInfo(classes=Classes(("circle", "square", "star"), (0.7, 0.2, 0.1)))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2, [2, 2, 2]),
        ("square", [1, 1, 1]),
        ("1", [1, 1, 1]),
        (-1, [NO_CLASS] * 3),
        (["star", 0, "-1"], [2, 0, NO_CLASS]),
        (np.array([0, 1, 2]), [0, 1, 2]),
        (np.int64(1), [1, 1, 1]),
        (torch.tensor([2, 1, 0], dtype=torch.int32), [2, 1, 0]),
        (torch.tensor(1), [1, 1, 1]),
    ],
)
def test_classes_are_taken_in_any_form(label: object, expected: list[int]) -> None:
    labels = labels_of(SHAPES.classes, label, 3)
    assert labels is not None
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected


def test_classes_are_drawn_by_their_shares() -> None:
    """Together: n times the share, up to less than one. Each: by the shares, wherever it stands.

    Over 4,000 repeats each frequency lies within 5 standard errors: a false alarm once in 10^5.
    """
    n, repeats, shares = 7, 4000, (0.7, 0.2, 0.1)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([SHAPES.classes.draw(n, generator) for _ in range(repeats)])
    for k, share in enumerate(shares):
        counts = (drawn == k).sum(1)
        assert bool(((counts - n * share).abs() < 1).all())
        error = (share * (1 - share) / repeats) ** 0.5
        assert bool((((drawn == k).double().mean(0) - share).abs() < 5 * error).all())


def test_samples_say_which_classes_were_drawn_and_are_of_them() -> None:
    model = tiny.build("images")
    out = model.sample(6, nfe=3, seed=4)
    assert out.label is not None
    # The classes are drawn before the noise: with the same noise and those classes the samples are the same.
    generator = torch.Generator().manual_seed(4)
    model.info.classes.draw(6, generator)
    again = model.sample(6, nfe=3, label=out.label, generator=generator)
    assert torch.equal(out.x, again.x)
    # None is drawn at random beside known data, which it might contradict.
    known = {"known": torch.zeros(1, 8, 8), "known_mask": torch.ones(1, 8, 8, dtype=torch.bool)}
    start = {"start_from": torch.zeros(1, 8, 8), "t_start": 0.3}
    for options in ({"label": -1}, known, start):
        assert model.sample(3, nfe=2, **options).label.tolist() == [NO_CLASS] * 3
    assert model.sample(3, nfe=2, label=1, **known).label.tolist() == [1] * 3
    vectors = tiny.build("vectors").sample(2)
    assert (vectors.label, vectors.nfe) == (None, 10)


def test_predictions_are_clipped_to_the_range_of_the_data() -> None:
    model = BFN(lambda mu, t: torch.full_like(mu, 3.0), ContinuousFlow(0.1), "data", (2,))
    assert float(model.sample(2).x.max()) == pytest.approx(3)
    model.info.value_range = (-1.0, 2.0)
    assert float(model.sample(2).x.max()) == pytest.approx(2)
    assert float(model.sample(2, clip=(-1, 1)).x.max()) == pytest.approx(1)
    assert float(model.sample(2, clip=False).x.max()) == pytest.approx(3)
    seen = []
    model.sample(2, clip=(-0.1, 0.1), on_step=lambda step: seen.append(float(step.prediction.max())))
    assert seen == pytest.approx([0.1] * 10)


def test_what_a_person_sees() -> None:
    text = tiny.build("text")
    assert text.decode(torch.tensor([[3, 1, 20], [0, 2, 1]])) == ["cat", " ba"]
    images = tiny.build("images").decode(torch.tensor([-1.0, 0.0, 1.0, 7.0]).repeat(16).view(1, 1, 8, 8))
    assert (images.dtype, images.shape, images.flatten()[:4].tolist()) == (np.uint8, (1, 8, 8, 1), [0, 128, 255, 255])
    binary = tiny.build("binary")
    assert binary.decode(torch.tensor([0, 1, 1, 0]).repeat(16).view(1, 1, 8, 8)).flatten()[:4].tolist() == [
        0,
        255,
        255,
        0,
    ]
    assert tiny.build("vectors").decode(torch.tensor([[1.5, 2.0]])).tolist() == [[1.5, 2.0]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_losses_take_arrays(dtype: type) -> None:
    model = BFN(lambda mu, t: mu, ContinuousFlow(0.1), "data", (2,))
    x = np.array([[0.5, -0.5], [0.25, 0.0]], dtype=dtype)
    ours, theirs = (
        model.loss(data, generator=torch.Generator().manual_seed(0)) for data in (x, torch.tensor(x).float())
    )
    assert torch.equal(ours, theirs)
    classes = BFN(lambda theta, t: theta, DiscreteFlow(3), "logits", (2,))
    assert classes.loss(np.array([[0, 2]], dtype=np.uint8)).shape == (1,)
