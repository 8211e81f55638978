"""Temperature, allowed classes, starting data and fixed noise, against exact results."""

from collections.abc import Mapping
from itertools import pairwise
from math import inf, pi
from typing import Any

import pytest
import torch
from scipy import stats

import bfn
import tiny
from bfn import solvers
from bfn.controls.known import FixedNoise
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.solver import plan
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture, Points
from bfn.exact.strings import ProductOfCategoricals, StringSet
from bfn.solvers import SOLVERS

FALSE_ALARM = 1e-4
"""Probability that a correct program fails one of the statistical tests with new seeds."""

PROBS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
ALLOWED = torch.tensor([[True, True, False, True], [True, False, True, False], [False, False, True, False]])
STRINGS = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [2, 1, 0]])
MEANS = torch.tensor([[1.0, 0.0, -0.5], [-0.6, 0.5, 0.2]], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def product(beta_1: float = 8.0) -> ProductOfCategoricals:
    return ProductOfCategoricals(PROBS, beta_1=beta_1)


def gaussians() -> GaussianMixture:
    return GaussianMixture(MEANS, stds=torch.full((2, 3), 0.2))


def joint() -> JointMixture:
    return JointMixture(
        {"x": (MEANS, torch.full((2, 3), 0.2).double())},
        {"kind": torch.stack([PROBS, PROBS.flip(1)])},
        flows={"x": ContinuousFlow(0.01), "kind": DiscreteFlow(4, 8.0)},
    )


def names(kind: str) -> list[str]:
    """Return the solvers for a kind of data, except for the one that needs an error curve of a trained model."""
    return [name for name in solvers.names() if kind in SOLVERS[name].kinds and name != "bfn-optimal"]


def recorded(model: bfn.Model, n: int, *args: Any, **settings: Any) -> tuple[list[bfn.Step], Any]:
    steps: list[bfn.Step] = []
    return steps, model.sample(n, *args, on_step=steps.append, **settings)


def same(a: Any, b: Any) -> bool:
    return all(same(a[key], b[key]) for key in b) if isinstance(b, Mapping) else torch.equal(a, b)


@pytest.mark.parametrize("make", [product, joint])
def test_controls_with_default_values_change_nothing(make) -> None:
    model = make()
    everything: Any = torch.ones(4, dtype=torch.bool)
    everything = everything if make is product else {"kind": everything}
    plain = model.sample(5, "bfn", 6, seed=3)
    assert same(model.sample(5, "bfn", 6, seed=3, temperature=1, allowed=everything).x, plain.x)
    assert torch.equal(model.sample(5, "bfn", 6, seed=3, temperature=1, allowed=everything).final, plain.final)


@pytest.mark.parametrize("temperature", [0.25, 0.9, 3.0])
@pytest.mark.parametrize("model", [product(), StringSet(STRINGS, n_classes=3)], ids=["product", "strings"])
def test_at_every_call_probabilities_are_the_posteriors_to_the_power_1_over_t(model, temperature) -> None:
    steps, out = recorded(model, 6, "fast-ode", 5, seed=0, temperature=temperature)
    for step in steps:
        level = model.flow.noise_level(step.t, 6, 2, step.u)
        power = model.output(step.u, level).mean ** (1 / temperature)
        torch.testing.assert_close(step.prediction, power / power.sum(-1, keepdim=True), rtol=1e-9, atol=1e-12)
    assert torch.equal(out.prediction, steps[-1].prediction)


@pytest.mark.parametrize("solver", ["bfn", "fast-ode"])
def test_entropy_falls_with_the_temperature(solver) -> None:
    """Each step is larger than 0.05 nats; the standard error is about 0.015."""
    entropies = []
    for temperature in (2.0, 1.0, 0.5, 1e-30):
        x = product().sample(4000, solver, 20, seed=0, temperature=temperature).x
        shares = torch.nn.functional.one_hot(x, 4).double().mean(0)[:2]  # the third has no favourite
        entropies.append(float(torch.special.entr(shares).sum()))
    assert all(before - after > 0.05 for before, after in pairwise(entropies)), entropies


def test_on_joint_data_the_temperature_acts_on_classes_alone() -> None:
    model = joint()
    steps, _ = recorded(model, 4, "fast-ode", 4, seed=0, temperature=0.5)
    part = {p.name: p for p in model.flow.layout}
    for step in steps:
        plain = model.output(step.u, model.flow.noise_level(step.t, 4, 1, step.u)).mean
        assert torch.equal(part["x"].state_of(step.prediction), part["x"].state_of(plain))
        power = part["kind"].state_of(plain).square()
        expected = power / power.sum(-1, keepdim=True)
        torch.testing.assert_close(part["kind"].state_of(step.prediction), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", ["bfn", "fast-sde", "fast-ode"])
def test_allowed_classes_of_independent_variables_follow_the_exact_conditional_distribution(solver) -> None:
    """Chi-square tests of 2 variables with 3 solvers, with FALSE_ALARM in total."""
    n = 4000
    x = product(beta_1=20.0).sample(n, solver, 60, seed=1, allowed=ALLOWED).x
    for variable in range(2):
        may = ALLOWED[variable]
        counts = torch.bincount(x[:, variable], minlength=4)
        assert int(counts[~may].sum()) == 0
        expected = PROBS[variable, may] / PROBS[variable, may].sum() * n
        assert stats.chisquare(counts[may].numpy(), expected.numpy()).pvalue > FALSE_ALARM / 6
    assert bool((x[:, 2] == 2).all())  # one allowed class is a forced one


@pytest.mark.parametrize("name", names("discrete"))
def test_no_solver_predicts_a_class_that_is_not_allowed(name) -> None:
    each = ALLOWED.expand(5, 3, 4).clone()
    each[1, 0] = torch.tensor([False, False, True, False])
    steps, out = recorded(product(), 5, name, 6, seed=0, allowed=each)
    assert all(bool((step.prediction[~each] == 0).all()) for step in steps)
    assert bool(each.gather(-1, out.x.unsqueeze(-1)).all())


def test_on_joint_data_a_part_has_its_own_mask() -> None:
    model = joint()
    x = model.sample(200, "fast-sde", 8, seed=0, allowed={"kind": ALLOWED}).x
    assert bool(ALLOWED.expand(200, 3, 4).gather(-1, x["kind"].unsqueeze(-1)).all())
    known = model.sample(6, nfe=6, seed=0, allowed={"kind": ALLOWED}, known={"x": MEANS[0]}).x
    assert torch.equal(known["x"], MEANS[0].expand(6, 3))
    assert bool((known["kind"][:, 2] == 2).all())


def test_known_data_are_kept_beside_other_controls() -> None:
    mask = torch.tensor([True, False, False])
    out = product().sample(7, nfe=6, seed=0, allowed=ALLOWED, temperature=0.5, known=3 * mask, known_mask=mask)
    assert bool((out.x[:, 0] == 3).all())
    known = {"known": torch.full((3,), 0.25, dtype=torch.float64), "known_mask": mask}
    out = gaussians().sample(4, nfe=5, start_from=MEANS[0], t_start=0.5, seed=0, **known)
    assert bool((out.x[:, 0] == 0.25).all())


def test_classes_that_are_not_allowed_have_probability_0_after_steering_and_in_half_precision() -> None:
    model = product()

    def wish(probs: torch.Tensor) -> torch.Tensor:
        return 5 * probs[:, :, 1].sum(1)

    steps, _ = recorded(model, 4, "fast-sde", 6, seed=0, allowed=ALLOWED, steer=wish)
    assert all(bool((step.prediction[~ALLOWED.expand(4, 3, 4)] == 0).all()) for step in steps)
    letters = torch.arange(27) < 5
    steps, out = recorded(
        tiny.build("text"), 4, "auto", 5, seed=0, allowed=letters, temperature=0.5, autocast=torch.bfloat16
    )
    assert all(bool((step.prediction[..., ~letters] == 0).all()) for step in steps)
    assert int(out.x.max()) < 5


@pytest.mark.parametrize("name", [name for name in solvers.names() if name != "bfn-optimal"])
def test_every_solver_returns_data_that_start_near_the_end(name) -> None:
    kinds = SOLVERS[name].kinds
    for model in [gaussians()] * ("continuous" in kinds) + [product(60.0)] * ("discrete" in kinds):
        x = model.sample_data(6, seeded(1))
        out = model.sample(6, name, 4, start_from=x, t_start=0.98, grid="uniform", seed=0)
        assert out.times[0] == 0.98
        assert float((out.x - x).abs().max()) < 0.01


@pytest.mark.parametrize("make", [gaussians, product, joint])
def test_the_first_state_is_the_data_noised_to_that_time(make) -> None:
    """The same draws as the flow makes from the same noise."""
    model = make()
    x = model.sample_data(5, seeded(4))
    steps, _ = recorded(model, 5, "fast-sde", 4, start_from=x, t_start=0.4, seed=9)
    u = steps[0].u
    noise = torch.randn(u.shape, generator=seeded(9), dtype=u.dtype)
    packed = model.flow.pack(x, model.data_shape)
    expected = model.flow.noised(packed, model.flow.noise_level(0.4, 5, u.ndim - 1, u).s, noise)
    assert torch.equal(u, expected)
    one = model.flow.unpack(packed[:1])
    one = {key: value[0] for key, value in one.items()} if isinstance(one, Mapping) else one[0]
    repeated, out = recorded(model, 5, "fast-sde", 4, start_from=one, t_start=0.4, seed=9)
    assert torch.equal(repeated[0].u[0], u[0])
    assert out.label is None


def test_starting_from_data_of_the_model_keeps_their_distribution() -> None:
    """From exact data, an accurate solver returns their distribution (FALSE_ALARM / 3 for each variable)."""
    model = gaussians()
    x = model.sample(3000, "fast-sde", 30, start_from=model.sample_data(3000, seeded(6)), t_start=0.3, seed=7).x
    exact = model.sample_data(3000, seeded(8))
    for variable in range(3):
        assert stats.ks_2samp(x[:, variable].numpy(), exact[:, variable].numpy()).pvalue > FALSE_ALARM / 3


def test_starting_data_take_the_first_time_of_a_table_or_a_grid() -> None:
    model = gaussians()
    by_time = model.sample(3, "fast-ode", 4, start_from=MEANS[0], t_start=0.4, seed=0).x
    table = plan(model, "fast-ode", 4, t_start=0.4).table
    assert torch.equal(model.sample(3, table, start_from=MEANS[0], seed=0).x, by_time)
    assert torch.equal(model.sample(3, "fast-ode", grid=table.times, start_from=MEANS[0], seed=0).x, by_time)


@pytest.mark.parametrize("name", [name for name in names("continuous") if not name.startswith("euler")])
def test_fixed_noise_follows_the_first_noise_to_a_single_point(name) -> None:
    """The prediction is constant, and all rows except for Euler's follow it exactly: every state is s w + eps."""
    point = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    model = Points(point, dtype=torch.float64)
    eps = torch.randn(4, 2, generator=seeded(1), dtype=torch.float64)
    steps, _ = recorded(model, 4, name, 8, initial=eps, noise="fixed", seed=0)
    start = model.flow.schedule.s(steps[0].t) if steps[0].t else 0.0
    for step in steps:
        s = model.flow.schedule.s(step.t) if step.t else 0.0
        # The first state is eps itself: what it lacks, s_start w, only the ODE carries along.
        gap = (step.u - s * point - eps).abs().max()
        assert float(gap) <= float(start) * float(point.abs().max()) * (1 + 1e-9) + 1e-9 * (1 + float(s))


@pytest.mark.parametrize(("solver", "g"), [("fast-sde", 1.0), ("fast-sde", inf), ("sde-bfn-solver2", None)])
def test_more_calls_with_fixed_noise_give_the_same_strings(solver, g) -> None:
    model = StringSet(STRINGS, n_classes=3, beta_1=12.0)
    agree = {}
    for noise in ("fresh", "fixed"):
        a, b = (model.sample(500, solver, calls, g=g, noise=noise, seed=0).x for calls in (40, 80))
        agree[noise] = float((a == b).all(1).double().mean())
    assert agree["fixed"] > 0.97
    assert agree["fresh"] < 0.8


def test_fixed_noise_does_not_change_tables_without_noise_or_with_full_renoising() -> None:
    flow = DiscreteFlow(3, 12.0)
    model = StringSet(STRINGS, n_classes=3, flow=flow)
    table = plan(model, "fast-ode", 8).table
    assert FixedNoise().table(table, flow) == table
    table = plan(model, "fast-sde", 8, g=inf).table
    assert [row.c for row in FixedNoise().table(table, flow).rows] == pytest.approx([row.c for row in table.rows])
    assert FixedNoise.from_options("fresh") is None


def test_fixed_noise_makes_gaussian_samples_wider_by_half_pi() -> None:
    """dy = w_hat d beta + eps ds, w_hat = v y / (1 + v beta): y = eps (1 + v beta) arctan(s sqrt(v)) / sqrt(v)."""
    model = GaussianMixture(torch.zeros(1, 1, dtype=torch.float64), stds=torch.tensor([0.5]))
    eps = torch.ones(1, 1, dtype=torch.float64)
    x = model.sample(1, "sde-bfn-solver++2", 2000, initial=eps, noise="fixed", seed=0).x
    assert float(x) == pytest.approx(0.5 * pi / 2, rel=2e-3)
