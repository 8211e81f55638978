"""Bits from nats, and their intervals."""

import math

import pytest
import torch

import bfn
from bfn.exact.strings import ProductOfCategoricals
from bfn.likelihood.bits import bits_parts, held_out_bits
from exact_models import seeded

PROBS = torch.softmax(torch.randn(5, 3, generator=seeded(), dtype=torch.float64), -1)


def model() -> ProductOfCategoricals:
    return ProductOfCategoricals(PROBS, beta_1=3.0)


def test_the_total_has_the_interval_of_the_sums() -> None:
    ln2 = math.log(2)
    transmission = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * ln2
    parts = bits_parts(transmission, 4 * ln2 - transmission)
    assert list(parts) == ["transmission", "reconstruction", "total"]
    assert [part.value for part in parts.values()] == pytest.approx([2, 2, 4])
    assert parts["total"].high - parts["total"].low == pytest.approx(0, abs=1e-12)
    # Student's quantile for 2 degrees of freedom times the standard error.
    assert parts["transmission"].high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)


def test_held_out_bits_are_the_losses_over_ln_2() -> None:
    """For each batch the loss is drawn before the reconstruction; the interval is Student's, from the batch means."""
    x = model().sample_data(40, seeded(1))
    generator = seeded(2)
    draws = [(model().loss(some, generator=generator), model().reconstruction_loss(some, generator=generator))
             for some in x.split(5)]  # fmt: skip
    bits = held_out_bits(model(), x, generator=seeded(2))
    for name, nats in zip(bits, (*zip(*draws, strict=True), [a + b for a, b in draws]), strict=True):
        means = torch.stack(list(nats)).mean(1) / math.log(2)
        assert bits[name].value == pytest.approx(float(means.mean()), rel=1e-12)
        half = 2.364624 * float(means.std()) / math.sqrt(8)
        assert bits[name].high - bits[name].value == pytest.approx(half, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"batch": 10}, {"repeats": 3}])
def test_the_intervals_cover_the_entropy(settings: dict) -> None:
    """The bits of an exact model are its entropy. More than 12 of 100 intervals miss it with probability 0.15 %."""
    exact = model()
    entropy = float(torch.special.entr(PROBS).sum()) / 5 / math.log(2)
    missed = 0
    for seed in range(100):
        x = exact.sample_data(160, seeded(seed))
        total = held_out_bits(exact, x, generator=seeded(1000 + seed), **settings)["total"]
        missed += not total.low < entropy < total.high
    assert missed <= 12


def test_processes_share_the_batches() -> None:
    x = model().sample_data(80, seeded(1))
    halves: list[torch.Tensor] = []
    held_out_bits(model(), x[:40], generator=seeded(5), gather=lambda rows: halves.append(rows) or rows)
    gathered = held_out_bits(model(), x[40:], generator=seeded(6), gather=lambda rows: torch.cat([*halves, rows]))
    first, second = (held_out_bits(model(), part, generator=seeded(seed)) for part, seed in ((x[:40], 5), (x[40:], 6)))
    assert gathered["total"].value == pytest.approx((first["total"].value + second["total"].value) / 2)


def test_labels_may_be_names_and_one_sample_has_no_interval() -> None:
    def network(mu: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(mu) + label[:, None]

    flow = bfn.ContinuousFlow(0.1)
    named = bfn.BFN(network, flow, "data", (3,), bfn.ModelInfo(classes=bfn.Classes(("no", "yes"), (0.5, 0.5))))
    x = torch.ones(4, 3)
    right = held_out_bits(named, x, "yes", generator=seeded())
    assert right["transmission"].value == 0
    assert held_out_bits(named, x, torch.tensor([1, 1, 0, 1]), generator=seeded())["transmission"].value > 0
    assert math.isnan(held_out_bits(named, x[:1], 1)["total"].low)
