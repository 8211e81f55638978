import math

import pytest
import torch

import bfn
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.heads import Categorical
from bfn.core.losses import EDM, Bound, Importance, LossByTime, MinSNR, Weighting, squared_error

FLOWS = [ContinuousFlow(1e-3), DiscreteFlow(27, 0.75**2)]


def integrand(flow, t):
    """Something with the shape of a loss: steep at both ends, of known integral."""
    return 2 / flow.schedule.slope(t) * (1 + torch.cos(math.pi * t) + 3 * (t > 0.9))


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.kind)
@pytest.mark.parametrize("density", [(1.0,), (0.5, 1.5), (0.1, 0.2, 0.7, 3.0)])
def test_the_bound_and_importance_sampling_have_the_same_mean(flow, density):
    # integral of 1 + cos(pi t) + 3 [t > 0.9] over [0, 1] is 1.3; strata make the mean of n draws good to O(1/n).
    for weighting in (Bound(), Importance(density)):
        generator = torch.Generator().manual_seed(0)
        t, factor = weighting.draw(flow, 100_000, generator)
        assert t.dtype == factor.dtype == torch.float64
        assert float((factor * integrand(flow, t)).mean()) == pytest.approx(1.3, abs=2e-4)


def test_importance_fits_the_density_that_minimises_the_variance():
    # The integrand is constant in each bin: the best density is proportional to it, and leaves no variance at all.
    flow = DiscreteFlow(3, 1.0)
    height = torch.tensor([1.0, 2.0, 5.0, 8.0], dtype=torch.float64)
    fitted = Importance(uniform=1e-9).fitted(height.square())
    t, factor = fitted.draw(flow, 1000, torch.Generator().manual_seed(1))
    values = factor * 2 / flow.schedule.slope(t) * height[(t * 4).long()]
    torch.testing.assert_close(values, torch.full_like(values, 4.0))


def test_importance_counts_times_as_its_density_says():
    fitted = Importance(uniform=0.2).fitted(torch.tensor([1.0, 9.0]))  # 0.2 + 0.8 * (0.5, 1.5)
    assert fitted.density == pytest.approx((0.6, 1.4))
    t, _ = fitted.draw(FLOWS[1], 10_000, torch.Generator().manual_seed(2))
    assert int((t < 0.5).sum()) == pytest.approx(3000, abs=1)
    assert int((t < 0.25).sum()) == pytest.approx(1500, abs=1)
    assert Importance().fitted(torch.zeros(8)) == Importance()


def test_edm_draws_log_sigma_normal_and_gives_unit_targets():
    flow, weighting = ContinuousFlow(1e-3), EDM(mean=-1.2, std=1.2, data_std=0.4)
    t, factor = weighting.draw(flow, 20_001, torch.Generator().manual_seed(4))
    s = flow.schedule.s(t)
    log_sigma = -s.log()
    quantiles = torch.quantile(log_sigma, torch.tensor([0.1587, 0.5, 0.8413], dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.tensor([-2.4, -1.2, 0.0], dtype=torch.float64), atol=2e-3, rtol=0)
    # With x_hat = skip + out F, out = d / sqrt(1 + s^2 d^2): factor out^2 = 1, the error of F itself.
    torch.testing.assert_close(factor * (0.4**2 / (1 + (0.4 * s) ** 2)), torch.ones_like(s))


def test_edm_levels_stay_within_the_flow():
    flow = ContinuousFlow(0.5)  # s(1) = sqrt(3): half of the levels lie beyond
    t, factor = EDM(mean=-math.log(3) / 2, std=1.0).draw(flow, 1000, torch.Generator().manual_seed(5))
    assert float(t.max()) == pytest.approx(1.0)
    assert int((t > 1 - 1e-9).sum()) == pytest.approx(500, abs=1)
    assert torch.isfinite(factor).all()


def test_min_snr_weighs_like_its_definition():
    flow = ContinuousFlow(1e-3)
    t, factor = MinSNR(gamma=5).draw(flow, 64, torch.Generator().manual_seed(6))
    torch.testing.assert_close(factor, flow.schedule.beta(t).clamp(max=5))
    assert (factor.max(), (factor < 5).any()) == (5, True)


def test_loss_by_time_is_the_mean_in_each_bin():
    record = LossByTime(n_bins=4, memory=0.5)
    assert record.summary()["t"] == []
    t = torch.tensor([0.0, 0.1, 0.3, 0.99])
    record.add(t, torch.tensor([1.0, 3.0, 5.0, 7.0]), torch.full((4,), 4.0))
    record.fold()
    torch.testing.assert_close(record.squared_error(), torch.tensor([2.0, 5.0, 14 / 3, 7.0], dtype=torch.float64))
    torch.testing.assert_close(record.second_moment()[:2], torch.tensor([20.0, 100.0], dtype=torch.float64))
    record.add(t[:1], torch.tensor([8.0]), torch.full((1,), 4.0))
    record.fold()  # (1 + 3) / 2 old, halved; one new: (2 + 8) / (1 + 1)
    assert float(record.squared_error()[0]) == pytest.approx(5.0)
    other = LossByTime(n_bins=4)
    other.load_state_dict(record.state_dict())
    assert other.summary() == record.summary()


def test_times_that_were_never_drawn_are_not_made_up() -> None:
    record = LossByTime(n_bins=4)
    record.add(torch.tensor([0.1, 0.6, 0.7]), torch.tensor([1.0, 0.25, 0.75]), torch.ones(3))
    record.fold()
    assert record.summary()["t"] == [0.125, 0.625]
    assert record.summary()["squared_error"] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("name", "weighting"), [(None, Bound()), ("bound", Bound()), ("min-snr", MinSNR()), ("edm", EDM(data_std=0.7))]
)
def test_a_loss_by_name_is_the_factor_times_the_squared_error(name: str | None, weighting: Weighting) -> None:
    model = bfn.BFN(bfn.networks.MLP(3, width=8), bfn.ContinuousFlow(0.02), bfn.heads.PreconditionedHead(0.7), (3,))
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    t, factor = weighting.draw(model.flow, 6, generator)
    expected = (squared_error(model, x, t, generator) * factor).float()
    for own in (name, weighting):
        loss = model.loss(x, weighting=own, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(loss, expected)


def test_cross_entropy_is_least_at_the_posterior() -> None:
    """The exact posterior against sharper and blunter ones, same states: five standard errors of the difference."""

    class Tempered(bfn.Model):
        dtype = torch.float64

        def __init__(self, temperature: float) -> None:
            self.flow, self.data_shape, self.temperature = exact.flow, exact.data_shape, temperature

        def output(self, u, level, **conditions):
            return Categorical(exact.output(u, level).logits / self.temperature)

    generator = torch.Generator().manual_seed(0)
    exact = bfn.exact.StringSet(torch.randint(4, (5, 3), generator=generator), n_classes=4, beta_1=3.0)
    x = exact.sample_data(4000, generator)
    losses = [
        Tempered(temperature).loss(x, weighting="cross-entropy", generator=torch.Generator().manual_seed(2))
        for temperature in (1.0, 0.7, 1.4)
    ]
    for other in losses[1:]:
        difference = other - losses[0]
        assert float(difference.mean()) > 5 * float(difference.std()) / len(x) ** 0.5


@pytest.mark.parametrize("times", ["together", "separate"])
def test_a_weighting_by_name_holds_for_each_part(times: str) -> None:
    """The bound is the sum over parts of each one's own; the pair for samples is taken where each fits."""
    model = bfn.exact.JointMixture(
        {"x": ([[-1.0], [1.0]], [[0.2], [0.1]])}, {"kind": [[0.9, 0.1], [0.2, 0.8]]}, times=times
    )
    data = model.sample_data(12, torch.Generator().manual_seed(0))

    def loss(weighting: object) -> torch.Tensor:
        return model.loss(data, generator=torch.Generator().manual_seed(1), weighting=weighting)

    torch.testing.assert_close(loss("bound"), loss(None))
    torch.testing.assert_close(loss({"x": "bound", "kind": "bound"}), loss(None))
    torch.testing.assert_close(loss("edm"), loss({"x": "edm", "kind": "cross-entropy"}))


@pytest.mark.parametrize("own", [Bound(), EDM(), MinSNR()], ids=lambda own: type(own).__name__)
def test_a_weight_is_density_times_factor(own: Weighting) -> None:
    """The mean loss is the same at the times of a weighting and, with its weight, at uniform times."""
    t, factor = own.draw(FLOWS[0], 200_000, torch.Generator().manual_seed(0))
    at_own_times = float((factor * torch.exp(-3 * t)).mean())
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    at_uniform = float((own.weight(FLOWS[0], uniform) * torch.exp(-3 * uniform)).mean())
    # EDM moves levels beyond the last to it, a small share of the normal's tail, which the density leaves out.
    assert at_uniform == pytest.approx(at_own_times, rel=2e-2)
