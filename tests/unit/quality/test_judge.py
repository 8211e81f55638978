"""Judges: figures on data whose answers are known, real data beside them, and wrong input."""

import random

import pytest
import torch

import tiny
from bfn import data
from bfn._utils.estimate import Estimate
from bfn.core.conditions import Classes
from bfn.exact.numbers import Points
from bfn.quality.features import pooled_pixels
from bfn.quality.frechet import FeatureStatistics
from bfn.quality.judge import Judge, Measure
from bfn.quality.judge_choice import COPY_SHARE, Frechet, NearCopies, NearestClasses, Texts, judge_for
from bfn.quality.metrics import entropy, jensen_shannon, ngram_counts, spelling_accuracy


def normal(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def vectors() -> Judge:
    model = tiny.build("vectors")
    return judge_for(model, None, normal(8000, 2))


def test_measures_are_written_as_they_are_read() -> None:
    share = Measure("a", "a", "high", "%", 100, 1)
    assert share.show(Estimate(0.5, 0.41, 0.59)) == "50.0 [41.0, 59.0] %"
    assert share.show(Estimate(0.5)) == "50.0 %"
    assert Measure("c", "c", "low").show(Estimate(0.02134, 0.0, 0.141)) == "0.021 [0.00, 0.14]"
    assert (share.loss(0.2), Measure("b", "b", "real").loss(3.0, 5.0)) == (-0.2, 2.0)


def test_frechet_of_known_gaussians(vectors: Judge) -> None:
    # N(0, 1) against N((3, 0), 4 I): 9 + 2 (2 - 1)^2 = 11.
    figure = vectors(2 * normal(4000, 2, seed=1) + torch.tensor([3.0, 0.0]))["frechet"]
    assert figure.low < 11 < figure.high
    assert figure.high - figure.low < 1.5
    assert vectors.real(4000)["frechet"].value < 0.01
    assert [vectors.n_real(n) for n in (100, 10_000)] == [100, 4000]
    assert vectors.real(10_000) == vectors.real(4000)


def test_a_judge_leaves_out_what_few_samples_cannot_tell() -> None:
    images = normal(300, 1, 8, 8)
    frechet = Frechet(pooled_pixels, FeatureStatistics.of(pooled_pixels(images)))
    neighbours = NearestClasses(images.flatten(1), torch.arange(300) % 3)
    judge = Judge("pixels", (frechet, neighbours), images)
    smaller, problems = judge.suited(50)
    assert [m.key for m in smaller.measures] == ["asked_class"]
    assert len(problems) == 1
    assert "n=50" in problems[0]
    assert judge.suited(65)[1] == []
    assert smaller.key != judge.key


def test_class_by_nearest_neighbours() -> None:
    centres = 10 * torch.eye(3)
    labels = torch.arange(60) % 3
    part = NearestClasses(centres[labels] + 0.1 * normal(60, 3), labels)
    x = centres[torch.tensor([0, 1, 2, 2])]
    assert part(x, torch.tensor([0, 1, 2, 2]))["asked_class"].value == 1
    assert part(x, torch.tensor([0, 1, 2, 0]))["asked_class"].value == 0.75
    assert part(x, None) == {}


def test_copies_are_found_and_blur_is_none() -> None:
    train = normal(2000, 20, seed=3)
    part = NearCopies(train, normal(1000, 20, seed=4))
    copies = part(train[:100] + 0.01 * normal(100, 20, seed=5), None)["near_copies"]
    fresh = part(normal(300, 20, seed=6), None)["near_copies"]
    blurred = part(0.2 * train[:100], None)["near_copies"]
    assert copies.value == 1
    assert fresh.low <= COPY_SHARE <= fresh.high
    assert blurred.value <= 0.05


def test_text_beside_real_text() -> None:
    alphabet = data.Alphabet(tiny.ALPHABET)
    words = ["the", "cat", "sat", "on", "mat", "and", "dog", "ran", "fast"]
    text = alphabet.encode(" ".join(random.Random(0).choices(words, k=4000)))
    judge = judge_for(tiny.build("text"), None, text[: len(text) // 20 * 20].view(-1, 20))
    real, noise = judge.real(100), judge(torch.randint(27, (100, 20), generator=torch.Generator().manual_seed(1)))
    assert judge.name == "text"
    assert [m.key for m in judge.measures] == [
        "spelling", "ngram_divergence", "word_divergence", "ngram_entropy", "word_entropy",
    ]  # fmt: skip
    assert real["spelling"].low > noise["spelling"].high
    assert real["ngram_divergence"].high < noise["ngram_divergence"].low
    assert noise["word_entropy"].value > real["word_entropy"].value
    for figure in (*real.values(), *noise.values()):
        assert figure.low <= figure.value <= figure.high
    few = judge(alphabet.encode("the the the the the ").repeat(100, 1))
    assert few["spelling"].value == 1
    assert few["word_entropy"].value == 0
    assert few["word_divergence"].value > real["word_divergence"].high


def test_text_divergences_are_those_of_the_metrics() -> None:
    alphabet, reference = data.Alphabet(tiny.ALPHABET), ["the cat sat on the mat ", "the dog ran "]
    part = Texts.against(alphabet, reference)
    texts = ["the dog sat ", "a cat on the"]
    figures = part(torch.stack([alphabet.encode(text) for text in texts]), None)
    grams = ngram_counts(texts, 4)
    assert figures["ngram_divergence"].value == pytest.approx(jensen_shannon(grams, ngram_counts(reference, 4)))
    assert figures["ngram_entropy"].value == pytest.approx(entropy(torch.tensor(list(grams.values()))).item())
    assert figures["spelling"].value == spelling_accuracy(texts)


def test_digits_are_judged_by_pixels_and_their_class() -> None:
    model = tiny.build("images")
    model.info.classes = Classes.equal(10)
    judge = judge_for(model, None, "digits")
    assert [m.key for m in judge.measures] == ["frechet", "asked_class", "near_copies"]
    real = judge.real(500)
    assert real["frechet"].value < 1.5
    assert real["asked_class"].low > 0.9
    assert real["near_copies"].value == COPY_SHARE
    train = data.load("digits", "train")
    copies = judge(train.to_float()[:300], train.labels[:300])
    assert copies["near_copies"].low > 0.9
    noise = judge(normal(300, 1, 8, 8).clamp(-1, 1), torch.arange(300) % 10)
    assert noise["frechet"].low > 10
    assert noise["near_copies"].value < 0.05


def test_classes_are_seen_as_pixels() -> None:
    model = tiny.build("binary")
    classes = torch.randint(2, (400, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    judge = judge_for(model, None, classes)
    assert torch.equal(judge.held_out, classes[1::2] * 2.0 - 1)
    assert judge(classes)["frechet"].value < judge(torch.ones_like(classes))["frechet"].value


def test_the_key_names_the_reference() -> None:
    points = Points(normal(20, 3))  # an exact model, which has no config
    keys = [judge_for(points, None, normal(100, 3, seed=seed)).key for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]
