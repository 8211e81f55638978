"""The spread of data: from the data, by class, and from an error curve."""

import pytest
import torch

from bfn.core.flows import ContinuousFlow
from bfn.core.info import ErrorCurve, Spread


def test_the_widest_direction_is_the_first_eigenvector_of_the_covariance():
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
    stds = torch.tensor([3.0, 1.0, 0.5, 0.2, 0.1, 0.1], dtype=torch.float64)
    x = (torch.randn(50_000, 6, generator=generator, dtype=torch.float64) * stds) @ turn + 5
    spread = Spread.of(x)
    assert spread.widest == pytest.approx(3.0, rel=0.05)
    assert spread.std == pytest.approx(float(stds.square().mean().sqrt()), rel=0.05)


def test_classes_that_are_told_do_not_widen_the_data():
    label = torch.arange(400) % 2
    x = 10.0 * label[:, None] + torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    assert Spread.of(x).widest > 5
    assert Spread.of(x, label).widest < 1.3
    assert Spread.of(torch.ones(10, 2)) is Spread.of(torch.ones(1, 2)) is None


def test_an_error_curve_tells_where_the_data_begin_to_be_resolved():
    flow = ContinuousFlow(0.001)
    t = torch.linspace(0, 1, 200, dtype=torch.float64)
    beta = flow.schedule.beta(t)
    for widest in (0.5, 2.0):
        errors = [(0.2 * widest**2 / (1 + float(b) * widest**2) + 0.001) for b in beta]
        found = Spread.from_curve(ErrorCurve(tuple(t.tolist()), tuple(errors)), flow)
        assert widest / 2 < found.widest < 5 * widest
    assert Spread.from_curve(ErrorCurve((0.0, 1.0), (1.0, 1.0)), flow) is None
