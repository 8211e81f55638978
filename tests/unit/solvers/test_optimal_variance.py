"""The optimal variance: exact in distribution for normal data and any step."""

import pytest
import torch

import bfn
from bfn.core.info import ErrorCurve
from bfn.core.losses import error_curve
from bfn.exact.numbers import GaussianMixture
from linear import LinearModel, final_variance
from planned import make_table

FLOWS = {"continuous": bfn.ContinuousFlow(sigma_1=0.05), "discrete": bfn.DiscreteFlow(n_classes=5, beta_1=3.0)}


def exact_curve(model: LinearModel) -> ErrorCurve:
    """Return the variance of an entry of w given u, v kappa / (kappa + s^2 v), at many times."""
    t = torch.linspace(0, 1, 20001, dtype=torch.float64)
    kappa, v = model.flow.kappa, model.variance
    return ErrorCurve(tuple(t.tolist()), tuple((v * kappa / (kappa + model.flow.schedule.beta(t) * v)).tolist()))


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("nfe", [2, 3, 5, 20])
def test_normal_messages_keep_their_exact_variance(kind: str, nfe: int) -> None:
    model = LinearModel(FLOWS[kind], variance=0.7)
    table = make_table(model.flow, "bfn-optimal", nfe, curve=exact_curve(model))
    assert final_variance(table, model) == pytest.approx(model.std(1.0) ** 2, rel=1e-5)
    if kind == "continuous":
        plain = make_table(model.flow, "bfn", nfe)
        assert final_variance(plain, model) < 0.95 * model.std(1.0) ** 2


@pytest.mark.parametrize("kind", FLOWS)
def test_a_certain_model_adds_no_noise(kind: str) -> None:
    certain = make_table(FLOWS[kind], "bfn-optimal", 7, curve=ErrorCurve((0.0,), (0.0,)))
    for row, plain in zip(certain.rows, make_table(FLOWS[kind], "bfn", 7).rows, strict=True):
        assert (row.a, row.b, row.c) == (plain.a, plain.b, plain.c)


def test_few_calls_are_closer_to_a_mixture() -> None:
    """First Wasserstein distance on two peaks; the same draws."""
    generator = torch.Generator().manual_seed(0)
    model = GaussianMixture(torch.tensor([[-0.7], [0.6]]), stds=torch.tensor([0.2, 0.3]))
    data = model.sample_data(20000, generator)
    model.info.error_curve = error_curve(model, data[:4000], generator=generator)
    distance = {}
    for name in ("bfn", "bfn-optimal"):
        x = model.sample(20000, name, 5, generator=torch.Generator().manual_seed(1)).x
        distance[name] = float((x.flatten().sort().values - data.flatten().sort().values).abs().mean())
    assert distance["bfn-optimal"] < 0.5 * distance["bfn"]
