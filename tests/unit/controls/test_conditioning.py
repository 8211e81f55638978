"""Known data, guidance and steering: exact results where theory has them, and no change if nothing is asked for."""

import pytest
import torch

import tiny
from bfn import solvers
from bfn.controls.guidance import Guidance, Steering
from bfn.controls.known import DATA_END, BoundKnown, Given
from bfn.core.flows import NoiseLevel
from bfn.core.heads import Categorical, Point
from bfn.exact.numbers import GaussianMixture, Points
from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, StringSet
from bfn.solvers import SOLVERS

STRINGS = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [2, 1, 0]])
PROBS = torch.tensor([0.35, 0.25, 0.2, 0.15, 0.05], dtype=torch.float64)
COVARIANCES = torch.tensor(
    [[[0.5, 0.3, 0.1], [0.3, 0.4, 0.0], [0.1, 0.0, 0.3]], [[0.2, -0.1, 0.0], [-0.1, 0.3, 0.1], [0.0, 0.1, 0.6]]],
    dtype=torch.float64,
)
MEANS = torch.tensor([[1.0, 0.0, -0.5], [-0.6, 0.5, 0.2]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def strings() -> StringSet:
    return StringSet(STRINGS, PROBS, n_classes=3, beta_1=12.0)


def solver_names(kind: str) -> list[str]:
    """Return the solvers for a kind of data, except for the one that needs an error curve of a trained model."""
    return [name for name in solvers.names() if kind in SOLVERS[name].kinds and name != "bfn-optimal"]


def discrete_models() -> list:
    g = seeded()
    probs = torch.rand(2, 4, 3, generator=g, dtype=torch.float64)
    transition = torch.rand(3, 3, generator=g, dtype=torch.float64)
    text = torch.randint(3, (200,), generator=g)
    return [
        StringSet(torch.randint(3, (9, 4), generator=g), n_classes=3),
        MixtureOfProducts(WEIGHTS, probs / probs.sum(-1, keepdim=True)),
        MarkovChain(torch.tensor([0.2, 0.3, 0.5]).double(), transition / transition.sum(1, keepdim=True), 4),
        NGram.from_text(text, 2, 4, n_classes=3),
    ]


@pytest.mark.parametrize("model", discrete_models(), ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("s", [0.0, 0.4])
def test_predictions_beside_known_classes_are_sums_over_all_strings(model, s) -> None:
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    x = model.sample_data(5, seeded(1))
    mask = torch.tensor([True, False, False, True])
    u = torch.randn(5, 4, 3, generator=seeded(2), dtype=torch.float64) * 2
    known = BoundKnown(x, mask.expand(5, 4), "data", model.flow, torch.float64)
    got = known.output(model.output, u, NoiseLevel(torch.full((5,), 0.3).double(), s)).mean
    evidence = (u * s)[:, torch.arange(4), every][:, :, ~mask].sum(-1)
    agrees = (every[None, :, mask] == x[:, None, mask]).all(-1)
    weights = torch.softmax(torch.where(agrees, model.log_prob(every) + evidence, -torch.inf), 1)
    expected = torch.einsum("bn,ndk->bdk", weights, torch.nn.functional.one_hot(every, 3).double())
    assert torch.allclose(got, expected, atol=1e-9)


def conditional_mixture(x_known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights, means and covariances of the last two variables given the first."""
    a, b, c = COVARIANCES[:, 0, 0], COVARIANCES[:, 1:, 0], COVARIANCES[:, 1:, 1:]
    gap = x_known - MEANS[:, 0]
    means = MEANS[:, 1:] + b * (gap / a).unsqueeze(1)
    log_weights = WEIGHTS.log() - gap.square() / (2 * a) - a.log() / 2
    return log_weights.softmax(0), means, c - b.unsqueeze(2) * b.unsqueeze(1) / a[:, None, None]


@pytest.mark.parametrize("s", [0.0, 0.8, 30.0])
def test_predictions_beside_known_numbers_are_those_of_the_conditional_mixture(s) -> None:
    model = GaussianMixture(MEANS, COVARIANCES, weights=WEIGHTS)
    weights, means, covariances = conditional_mixture(torch.tensor(0.7, dtype=torch.float64))
    conditional = GaussianMixture(means, covariances, weights=weights)
    u = torch.randn(6, 3, generator=seeded(3), dtype=torch.float64) * (1 + s)
    x, mask = torch.full((6, 3), 0.7, dtype=torch.float64), torch.tensor([True, False, False]).expand(6, 3)
    level = NoiseLevel(torch.full((6,), 0.5).double(), s)
    got = BoundKnown(x, mask, "data", model.flow, torch.float64).output(model.output, u, level).mean
    assert torch.allclose(got[:, 1:], conditional.output(u[:, 1:], level).mean, atol=1e-6)
    assert bool((got[:, 0] == 0.7).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bandwidth", [0.0, 0.2])
def test_points_that_disagree_with_known_numbers_have_no_weight(dtype, bandwidth) -> None:
    points = torch.tensor([[0.5, 0.1, -1.0], [0.5, 0.1, 0.3], [0.5, 0.1, 0.9], [-0.4, 0.2, 0.0]])
    model = Points(points, bandwidth, dtype=dtype, chunk=2)
    u = torch.randn(5, 3, generator=seeded(7)).to(dtype)
    x, mask = torch.tensor([0.5, 0.1, 0.0]).to(dtype).expand(5, 3), torch.tensor([True, True, False]).expand(5, 3)
    level = NoiseLevel(torch.full((5,), 0.5, dtype=dtype), 0.9)
    got = BoundKnown(x, mask, "data", model.flow, dtype).output(model.output, u, level).mean[:, 2]
    gaps = (points[:, :2] - x[0, :2].float()).double().square().sum(1)
    log_weights = -gaps / (2 * (bandwidth**2 + DATA_END**-2))
    line = GaussianMixture(
        points[:, 2:].double(), stds=torch.full((4,), bandwidth), weights=log_weights.softmax(0), dtype=torch.float64
    )
    assert torch.allclose(got.double(), line.output(u[:, 2:].double(), level).mean[:, 0], atol=2e-4)


KINDS_AND_SOLVERS = [(kind, name) for kind, data in (("text", "discrete"), ("images", "continuous"))
                     for name in solver_names(data)]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), KINDS_AND_SOLVERS)
@pytest.mark.parametrize("at", ["data", "path"])
def test_every_solver_keeps_known_data(kind, name, at) -> None:
    """Whatever stands outside of the mask."""
    model = tiny.build(kind)
    mask = torch.rand(model.data_shape, generator=seeded(9)) < 0.5
    known = torch.where(mask, 0.25, torch.nan) if kind == "images" else torch.where(mask, 4, 99)
    out = model.sample(3, name, 6, known=known, known_mask=mask, known_at=at, generator=seeded())
    assert torch.equal(out.x[:, mask], known[mask].expand(3, -1))
    assert bool(torch.isfinite(out.u).all())
    assert out.nfe == 6
    assert len(out.x[:, ~mask].unique()) > 1


@pytest.mark.parametrize("name", solver_names("continuous"))
def test_all_conditions_together_with_every_solver(name) -> None:
    model = tiny.build("images")
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, :, :3] = True
    known = {"known": torch.full((1, 8, 8), 0.25), "known_mask": mask}
    settings = {"label": torch.tensor([0, 1]), **known, "seed": 0, "steer": lambda x: x.flatten(1).mean(1)}
    plain, one, more = (model.sample(2, name, 5, guidance=g, **settings) for g in (None, 1.0, Guidance(2.0, 0.7)))
    assert torch.equal(one.x, plain.x)
    assert not torch.equal(more.x, plain.x)
    assert more.nfe == 5
    assert bool((more.x[..., :3] == 0.25).all())
    assert bool(torch.isfinite(more.x).all())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["fast-ode", "sde-bfn-solver++2", "auto", "bfn"])
def test_the_known_part_follows_its_exact_path(name) -> None:
    """u - s w is a standard normal at every call, including the first one."""
    model = GaussianMixture(MEANS, COVARIANCES, weights=WEIGHTS)
    known, mask = torch.tensor([0.8, 0.0, 0.0]).double(), torch.tensor([True, False, False])
    seen = []
    n = 4000
    start = {} if name == "bfn" else {"t_start": 0.1}
    model.sample(n, name, 6, known=known, known_mask=mask, generator=seeded(), on_step=seen.append, **start)
    for step in seen:
        noise = step.u[:, 0] - model.flow.schedule.s(step.t) * 0.8
        # False alarm below 1e-6: five standard errors of the mean and of the variance.
        assert abs(float(noise.mean())) < 5 / n**0.5
        assert abs(float(noise.var()) - 1) < 5 * (2 / n) ** 0.5


@pytest.mark.parametrize("kind", ["images", "text"])
@pytest.mark.parametrize("at", ["data", "path"])
def test_an_empty_mask_changes_no_bit(kind, at) -> None:
    model = tiny.build(kind)
    plain = model.sample(3, "auto", 10, generator=seeded())
    known = torch.full(model.data_shape, torch.nan if kind == "images" else 0)
    mask = torch.zeros(model.data_shape, dtype=torch.bool)
    out = model.sample(3, "auto", 10, known=known, known_mask=mask, known_at=at, generator=seeded())
    assert torch.equal(out.x, plain.x)
    assert torch.equal(out.u, plain.u)


def test_a_given_first_state_is_the_noise_of_the_known_part() -> None:
    model = GaussianMixture(MEANS, COVARIANCES, weights=WEIGHTS)
    initial = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    known, mask = torch.tensor([0.8, 0.0, 0.0]).double(), torch.tensor([True, False, False])
    seen = []
    settings = {"known": known, "known_mask": mask, "initial": initial, "t_start": 0.2, "on_step": seen.append}
    model.sample(4, "bfn-solver++1", 3, **settings)
    s = float(model.flow.schedule.s(0.2))
    assert torch.allclose(seen[0].u[:, 0], s * 0.8 + initial[:, 0])
    assert torch.equal(seen[0].u[:, 1:], initial[:, 1:])


def test_known_data_are_certain() -> None:
    output = Categorical(torch.randn(2, 3, 4, generator=seeded()))
    x, mask = torch.tensor([[1, 2, 3], [0, 0, 0]]), torch.tensor([[True, False, False], [False, False, True]])
    given = Given(output, torch.nn.functional.one_hot(x, 4).float(), mask.unsqueeze(-1), x, mask)
    assert given.log_prob(x)[0, 0] == 0
    assert given.log_prob(x + 1 - 2 * (x == 3).long())[0, 0] == -torch.inf
    assert torch.equal(given.log_prob(x)[~mask], output.log_prob(x)[~mask])
    kl = given.message_kl(x, torch.full((2, 1), 0.3), seeded())
    assert bool((kl[mask] == 0).all())
    assert bool((kl[~mask] != 0).all())
    assert bool((given.draw(seeded())[mask].argmax(-1) == x[mask]).all())


def test_rescaling_brings_back_the_spread_of_the_conditional_prediction() -> None:
    model = tiny.build("images")
    label = torch.tensor([0, 2])
    u = torch.randn(2, 1, 8, 8, generator=seeded())
    level = model.flow.noise_level(0.5, 2, 3, u)
    with torch.no_grad():
        wanted = model.output(u, level, label=label).mean.std((1, 2, 3))
        raw = Guidance(4.0, 0).predict(model.output, None)(u, level, label=label).mean.std((1, 2, 3))
        for share in (0.5, 1.0):
            got = Guidance(4.0, share).predict(model.output, None)(u, level, label=label).mean.std((1, 2, 3))
            assert torch.allclose(got, share * wanted + (1 - share) * raw, rtol=1e-4)


@pytest.mark.parametrize("s", [0.3, 1.0, 5.0])
def test_steering_by_a_linear_function_tilts_a_gaussian_exactly(s) -> None:
    """exp(b x) N(x; m, C) is N(x; m + C b, C) up to a factor."""
    b = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
    model = GaussianMixture(MEANS[:1], COVARIANCES[:1])
    tilted = GaussianMixture(MEANS[:1] + (COVARIANCES[0] @ b), COVARIANCES[:1])
    u = torch.randn(5, 3, generator=seeded(), dtype=torch.float64) * (1 + s)
    level = NoiseLevel(torch.full((5,), 0.5).double(), s)
    got = Steering(lambda x: x @ b)._steered(model.output, model.flow, u, level).mean
    assert torch.allclose(got, tilted.output(u, level).mean, atol=1e-12)


def test_steering_by_the_likelihood_of_a_measurement_gives_the_posterior_mean() -> None:
    """c = a x + noise on a Gaussian: p(c | u) = N(c; a x_hat, a Cov[x|u] a + variance), a function of x_hat."""
    a, c, variance, s = torch.tensor([1.0, 0.5, -0.2], dtype=torch.float64), 0.9, 0.1, 0.8
    precision = torch.linalg.inv(COVARIANCES[0]) + s * s * torch.eye(3).double()
    total = variance + a @ torch.linalg.inv(precision) @ a
    model = GaussianMixture(MEANS[:1], COVARIANCES[:1])
    u = torch.randn(5, 3, generator=seeded(), dtype=torch.float64)
    level = NoiseLevel(torch.full((5,), 0.5).double(), s)
    got = Steering(lambda x: -((c - x @ a).square()) / (2 * total))._steered(model.output, model.flow, u, level).mean
    informed = torch.linalg.inv(precision + torch.outer(a, a) / variance)
    expected = (torch.linalg.inv(COVARIANCES[0]) @ MEANS[0] + s * u + a * c / variance) @ informed
    assert torch.allclose(got, expected, atol=1e-12)


def test_axis_aligned_and_rotated_mixtures_agree_on_levels_of_each_variable() -> None:
    stds = torch.rand(2, 3, generator=seeded(4), dtype=torch.float64) + 0.2
    aligned, rotated = GaussianMixture(MEANS, stds=stds), GaussianMixture(MEANS, torch.diag_embed(stds.square()))
    u = torch.randn(4, 3, generator=seeded(5), dtype=torch.float64)
    level = NoiseLevel(torch.ones(4).double(), torch.rand(4, 3, generator=seeded(6), dtype=torch.float64) * 3)
    assert torch.allclose(aligned.output(u, level).mean, rotated.output(u, level).mean, atol=1e-12)


@pytest.mark.parametrize("s", [0.2, 1.5])
def test_steering_by_the_log_probability_of_a_class_equals_known_data(s) -> None:
    model = strings()
    u = torch.randn(7, 3, 3, generator=seeded(), dtype=torch.float64)
    level = NoiseLevel(torch.full((7,), 0.5).double(), s)
    got = Steering(lambda p: p[:, 1, 1].log())._steered(model.output, model.flow, u, level).mean
    x, mask = torch.ones(7, 3, dtype=torch.int64), torch.tensor([False, True, False]).expand(7, 3)
    expected = BoundKnown(x, mask, "data", model.flow, torch.float64).output(model.output, u, level).mean
    assert torch.allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize(("name", "nfe"), [("fast-ode", 40), ("bfn", 200), ("fast-sde", 100)])
def test_steered_samples_of_a_gaussian_have_the_tilted_mean(name, nfe) -> None:
    b = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
    model = GaussianMixture(MEANS[:1], COVARIANCES[:1])
    n = 4000
    out = model.sample(n, name, nfe, steer=lambda x: x @ b, generator=seeded())
    error = (out.x.mean(0) - (MEANS[0] + COVARIANCES[0] @ b)) / (COVARIANCES[0].diagonal() / n).sqrt()
    # The shift is several tens of standard errors; five leave room for the first call and the steps.
    assert float(error.abs().max()) < 5


def test_the_scale_of_steering() -> None:
    model = strings()
    plain = model.sample(20, "fast-ode", 6, generator=seeded())
    function = Steering(lambda p: p[:, 1, 1].log(), scale=0.0)
    assert torch.equal(model.sample(20, "fast-ode", 6, steer=function, generator=seeded()).x, plain.x)
    steered = model.sample(20, "fast-ode", 6, steer=function.function, generator=seeded())
    assert bool((steered.x[:, 1] == 1).all())


def test_a_point_stays_a_point_under_guidance() -> None:
    """Its scale is that of the head at this noise level."""
    model = tiny.build("images")
    u = torch.zeros(1, 1, 8, 8)
    level = model.flow.noise_level(0.5, 1, 3, u)
    with torch.no_grad():
        got = Guidance(2.0).predict(model.output, None)(u, level, label=torch.tensor([0]))
    assert isinstance(got, Point)
    assert got.scale == model.head.output(model.flow, u, u, level).scale
