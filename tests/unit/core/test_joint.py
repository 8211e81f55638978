"""Joint data: parts side by side behave as they do alone, and together as the exact model of both says."""

import math

import pytest
import torch
from torch import nn

import bfn
from bfn.controls.guidance import Guidance, Steering
from bfn.core import losses
from bfn.core.flows import ContinuousFlow, DiscreteFlow, NoiseLevel
from bfn.core.heads import PreconditionedHead
from bfn.core.joint import JointFlow, JointHead, JointOutput
from bfn.core.model import BFN
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import MixtureOfProducts
from bfn.solvers import names

SHAPES = {"x": (2,), "y": (), "kind": (3,)}
BOTH = [name for name in names("continuous") if name in names("discrete") and name != "bfn-optimal"]


def mixture(n: int = 3, times: str = "together") -> JointMixture:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return JointMixture(
        {"x": (normal(n, 2), 0.1 + 0.2 * normal(n, 2).abs()), "y": (normal(n), 0.3 + 0.1 * normal(n).abs())},
        {"kind": torch.softmax(2 * normal(n, 3, 4), -1)},
        weights=torch.softmax(normal(n), 0),
        flows={"x": ContinuousFlow(0.02), "y": ContinuousFlow(0.05), "kind": DiscreteFlow(4, 4.5)},
        times=times,
    )


def alone(part: str) -> tuple[JointMixture, bfn.Model]:
    """A joint model of one part, and the model of that part."""
    generator = torch.Generator().manual_seed(2)
    flow = ContinuousFlow(0.02) if part == "x" else DiscreteFlow(4, 4.5)
    if part == "x":
        means, stds = torch.randn(3, 2, generator=generator), 0.1 + 0.2 * torch.rand(3, 2, generator=generator)
        return JointMixture({"x": (means, stds)}, {}, flows={"x": flow}), GaussianMixture(means, stds=stds, flow=flow)
    probs = torch.softmax(2 * torch.randn(3, 3, 4, generator=generator), -1)
    own = MixtureOfProducts(torch.full((3,), 1 / 3), probs, flow=flow)
    return JointMixture({}, {"kind": probs}, flows={"kind": flow}), own


@pytest.mark.parametrize("part", ["x", "kind"])
def test_a_joint_flow_of_one_part_is_that_part(part: str) -> None:
    joint, own = alone(part)
    x = own.sample_data(6, torch.Generator().manual_seed(0))
    for settings in ({}, {"n_steps": 7}):
        ours, theirs = (m.loss(data, generator=torch.Generator().manual_seed(3), **settings)
                        for m, data in ((joint, {part: x}), (own, x)))  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    for name in names(own.flow.kind):
        if name == "bfn-optimal":
            continue
        ours, theirs = (m.sample(4, name, 6, seed=5).x for m in (joint, own))
        torch.testing.assert_close(ours[part], theirs, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", BOTH)
def test_every_solver_that_takes_both_kinds_takes_both_at_once(name: str) -> None:
    out = mixture().sample(3, name, 6, seed=0)
    assert out.nfe == 6
    assert {key: tuple(value.shape) for key, value in out.x.items()} == {k: (3, *v) for k, v in SHAPES.items()}
    assert out.x["kind"].dtype == torch.int64


def test_the_posterior_is_that_of_all_parts_together() -> None:
    """By brute force: weights of many exact samples by the density of the state given them."""
    model = mixture()
    generator = torch.Generator().manual_seed(0)
    n = 200_000
    data = model.sample_data(n, generator)
    x = model.as_data(data)
    level = model.flow.noise_level(0.35, 1, 1, x)
    truth = model.as_data({key: value[:1] for key, value in data.items()})
    u = model.flow.noised(truth, level.s, torch.randn((1, 15), generator=generator, dtype=torch.float64))
    residual = (u - level.s * model.flow.message(x)) / model.flow.noise_variance.double().sqrt()
    weights = torch.softmax(-residual.square().sum(1) / 2, 0)
    one_hot = (model.flow.message(x) - model.flow.message_map[1]) / model.flow.message_map[0]
    estimate = weights @ one_hot
    # The effective number of samples gives the error of the estimate: five of them, a false alarm in 10^5 a number.
    effective = 1 / weights.square().sum()
    error = 5 * (weights @ (one_hot - estimate).square() / effective).sqrt() + 1e-9
    assert bool(((model.output(u, level).mean[0] - estimate).abs() < error).all())


def test_the_bound_is_the_sum_of_its_parts_and_above_the_truth() -> None:
    model = mixture()
    generator = torch.Generator().manual_seed(0)
    data = model.sample_data(20_000, generator)
    x = model.as_data(data)
    loss = model.loss(data, generator=torch.Generator().manual_seed(1))
    parts = model.loss_of_parts(data, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(0), loss)
    total = (loss + model.reconstruction_loss(data, generator=generator)) * x.shape[1]
    excess = total + model.log_prob(data)
    # The bound is tight for an exact model but for what the reconstruction draws: close to 0, five standard errors.
    assert abs(float(excess.mean())) < 5 * float(excess.std()) / math.sqrt(len(x)) + 0.05


@pytest.mark.parametrize(("name", "g"), [("fast-ode", None), ("fast-sde", 1.0), ("bfn-solver1", None)])
def test_samples_have_the_distribution_of_the_data(name: str, g: float | None) -> None:
    """Means, variances, the dependence between parts: five standard errors, and the solver's own at 60 calls."""
    model, n = mixture(), 4_000
    grid = None if name == "bfn-solver1" else "uniform"
    out = model.sample(n, name, 60, seed=3, grid=grid, t_start=1e-4, g=g).x
    real = model.sample_data(n, torch.Generator().manual_seed(9))

    def statistics(data: dict[str, torch.Tensor]) -> torch.Tensor:
        one_hot = torch.nn.functional.one_hot(data["kind"], 4).double().flatten(1)
        x = torch.cat([data["x"], data["y"].unsqueeze(1)], 1).double()
        return torch.cat([x, x.square(), one_hot, (x.unsqueeze(2) * one_hot.unsqueeze(1)).flatten(1)], 1)

    ours, theirs = statistics(out), statistics(real)
    error = ((ours.var(0) + theirs.var(0)) / n).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 0.02).all())


def test_ode_solvers_converge_with_their_order_on_joint_data() -> None:
    model, initial = mixture(), torch.randn(64, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def ends(name: str, nfe: int) -> torch.Tensor:
        return model.sample(64, name, nfe, grid="uniform", t_start=0.05, initial=initial).u

    exact = ends("multistep:4:s", 641)
    for order in (1, 2):
        errors = [float((ends(f"multistep:{order}:s", n + 1) - exact).norm(dim=1).mean()) for n in (80, 160)]
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)


def test_known_parts_are_kept_and_the_rest_follows_from_them() -> None:
    """The class of a component is given: the numbers are those of the conditional distribution."""
    model = JointMixture(
        {"x": ([[-1.0], [1.0]], [[0.2], [0.2]])}, {"kind": [[0.95, 0.05], [0.1, 0.9]]}, weights=[0.5, 0.5],
        flows={"x": ContinuousFlow(0.02)},
    )  # fmt: skip
    out = model.sample(8000, "fast-sde", 60, g=1.0, grid="uniform", known={"kind": torch.tensor(0)}, seed=0).x
    assert bool((out["kind"] == 0).all())
    share = 0.95 / (0.95 + 0.1)
    drawn = float((out["x"] < 0).double().mean())
    assert abs(drawn - share) < 5 * math.sqrt(share * (1 - share) / 8000) + 0.01


class Network(nn.Module):
    """A network of mappings: each part by a layer of its own on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 + 1 + 12 + 1, 2 + 1 + 12)

    def forward(self, inputs: dict[str, torch.Tensor], t: torch.Tensor) -> dict[str, torch.Tensor]:
        assert {key: tuple(value.shape[1:]) for key, value in inputs.items()} == {"x": (2,), "y": (), "kind": (3, 4)}
        flat = torch.cat([value.reshape(len(t), -1) for value in inputs.values()], 1)
        out = self.layer(torch.cat([flat, t.unsqueeze(1)], 1))
        return {"x": out[:, :2], "y": out[:, 2], "kind": out[:, 3:].view(-1, 3, 4)}


def joint_model() -> BFN:
    torch.manual_seed(0)
    flow = JointFlow(x=ContinuousFlow(0.02), y=ContinuousFlow(0.05), kind=DiscreteFlow(4))
    return BFN(Network(), flow, {"x": PreconditionedHead(0.7), "y": "data", "kind": "logits"}, SHAPES)


def test_steering_moves_each_part_by_its_own_posterior() -> None:
    """A scale of nothing moves nothing; asking for class 0 of the first variable is Bayes's rule on that class."""
    model = mixture()
    u = torch.randn(4, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    level = model.flow.noise_level(0.4, 4, 1, u)
    plain = model.output(u, level).mean
    kind = model.flow.layout[-1]

    def first_is_zero(prediction: torch.Tensor) -> torch.Tensor:
        return kind.state_of(prediction)[:, 0, 0].log()

    still = Steering(first_is_zero, 1e-12)._steered(model.output, model.flow, u, level)
    torch.testing.assert_close(still.mean, plain, rtol=1e-6, atol=1e-6)
    steered = kind.state_of(Steering(first_is_zero)._steered(model.output, model.flow, u, level).mean)
    # log p_0(u) is log p(class 0 | u) itself, so that the steered prediction is that given class 0.
    torch.testing.assert_close(steered[:, 0], torch.tensor([1.0, 0, 0, 0]).double().expand(4, 4), atol=1e-5, rtol=0)


def test_guidance_acts_on_the_logits_of_classes_and_on_numbers() -> None:
    model = mixture()
    u = torch.randn(3, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    level = model.flow.noise_level(0.4, 3, 1, u)

    def predict(u: torch.Tensor, level: NoiseLevel, label: torch.Tensor | None = None) -> JointOutput:
        shift = torch.where(label >= 0, 0.1, 0.0).unsqueeze(1) if label is not None else 0.0
        return model.output(u + shift, level)  # type: ignore[return-value]

    label = torch.zeros(3, dtype=torch.int64)
    guided = Guidance(2.0).predict(predict, None)(u, level, label=label)
    conditional, none = predict(u, level, label=label), predict(u, level, label=label - 1)
    for name in ("x", "y"):
        expected = 2 * conditional.parts[name].mean - none.parts[name].mean
        torch.testing.assert_close(guided.parts[name].mean, expected)  # type: ignore[attr-defined]
    expected = 2 * conditional.parts["kind"].logits - none.parts["kind"].logits  # type: ignore[attr-defined]
    torch.testing.assert_close(guided.parts["kind"].logits, expected)  # type: ignore[attr-defined]


def test_parts_with_times_of_their_own_draw_them_independently() -> None:
    """Each column has one time in each stratum; what one says of another is no more than chance: five of its errors."""
    flow, n = mixture(times="separate").flow, 4000
    t = flow.draw_times(n, torch.Generator().manual_seed(0))
    assert t.shape == (n, 3)
    for column in t.unbind(1):
        assert torch.equal((column * n).floor().sort().values, torch.arange(n).double())
    correlation = torch.corrcoef(t.T)
    assert float((correlation - torch.eye(3)).abs().max()) < 5 / math.sqrt(n)


def test_the_loss_at_own_times_is_each_parts_rate_times_its_error() -> None:
    model = mixture(times="separate")
    generator = torch.Generator().manual_seed(0)
    data = model.sample_data(5, generator)
    x, t = model.as_data(data), torch.rand(5, 3, generator=generator, dtype=torch.float64)
    values = model.flow.split(losses.continuous_time_loss_values(model, x, t, torch.Generator().manual_seed(1)))
    eps = torch.randn(5, 15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for i in range(5):
        s = torch.cat([
            part.flow.schedule.s(t[i, k]).expand(part.state.stop - part.state.start)
            for k, part in enumerate(model.flow.layout)
        ])  # fmt: skip
        u = model.flow.noised(x[i : i + 1], s[None], eps[i : i + 1])
        output = model.output(u, NoiseLevel(t[i : i + 1], s[None]))
        for k, part in enumerate(model.flow.layout):
            error = part.flow.errors(part.data_of(x[i : i + 1]), part.state_of(output.mean))
            torch.testing.assert_close(values[part.name][i : i + 1], error * part.flow.schedule.slope(t[i, k]) / 2)
    same = torch.rand(5, generator=generator, dtype=torch.float64)
    together = mixture().loss(data, same, generator=torch.Generator().manual_seed(2))
    apart = model.loss(data, same.unsqueeze(1).expand(5, 3), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(together, apart)
    assert torch.isfinite(model.loss(data, n_steps=5)).all()


def test_a_network_is_told_the_time_of_each_part(tmp_path) -> None:
    """In training all of them apart; while sampling the path's; 1 for a part that is wholly known."""
    told = []

    class Listening(Network):
        def forward(self, inputs: dict[str, torch.Tensor], t: torch.Tensor) -> dict[str, torch.Tensor]:
            told.append(t)
            return super().forward(inputs, t.mean(1))

    flow = JointFlow(x=ContinuousFlow(0.02), y=ContinuousFlow(0.05), kind=DiscreteFlow(4), times="separate")
    torch.manual_seed(0)
    model = BFN(Listening(), flow, {"x": "noise", "y": "data", "kind": "logits"}, SHAPES)
    model.loss({"x": torch.zeros(4, 2), "y": torch.zeros(4), "kind": torch.zeros(4, 3).long()})
    assert told.pop().shape == (4, 3)
    again = bfn.load(model.save(tmp_path), network=Listening())
    assert again.flow == model.flow
    assert again.flow != JointFlow(flow.parts)
    told.clear()
    again.sample(2, "fast-ode", 5, path=["kind"], seed=0)
    times = torch.stack([t[0] for t in told])
    torch.testing.assert_close(times[:, 2], torch.tensor([0.001, 0.5005, 1, 1, 1]))
    torch.testing.assert_close(times[:, 0], torch.tensor([0.001, 0.001, 0.001, 0.5005, 1]))
    told.clear()
    again.sample(2, "fast-ode", 4, known={"y": 0.3}, seed=0)
    assert bool((torch.stack(told)[:, :, 1] == 1).all())
    assert float(torch.stack(told)[0, :, 0].max()) < 0.01


COLUMNS = {"a": 2, "x": None, "b": 7, "c": 40, "y": None, "d": 3}


def columns(flat: bool, order: tuple[str, ...] = tuple(COLUMNS)) -> BFN:
    """A table of classes and numbers; the network answers with some mix of what it sees, times ten."""
    flows = {k: ContinuousFlow(0.02) if COLUMNS[k] is None else DiscreteFlow.with_separation(COLUMNS[k]) for k in order}
    flow = JointFlow(flows)
    heads = {k: "logits" if COLUMNS[k] else PreconditionedHead(0.7) if k == "x" else "data" for k in order}
    width = sum(COLUMNS[k] or 1 for k in order)
    mix = torch.randn(width, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network = Mix(mix) if flat else Apart(mix, {k: COLUMNS[k] for k in order})
    head = JointHead.make(heads, flow, flat=flat)
    return BFN(network, flow, head, {k: () for k in order})


def data_of(n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randint(size, (n,), generator=generator) if size else torch.randn(n, generator=generator).double()
        for name, size in COLUMNS.items()
    }


class Mix(nn.Module):
    def __init__(self, mix: torch.Tensor) -> None:
        super().__init__()
        self.mix, self.scale = nn.Parameter(mix), 10.0

    def forward(self, inputs: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.scale * inputs @ self.mix


class Apart(Mix):
    def __init__(self, mix: torch.Tensor, sizes: dict) -> None:
        super().__init__(mix)
        self.sizes = sizes

    def forward(self, inputs: dict, t: torch.Tensor) -> dict:
        both = super().forward(torch.cat([x.reshape(len(t), -1) for x in inputs.values()], 1), t)
        pieces = both.split([k or 1 for k in self.sizes.values()], 1)
        return {key: x if self.sizes[key] else x[:, 0] for key, x in zip(self.sizes, pieces, strict=True)}


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0], ids=["small", "usual", "beyond float32"])
@pytest.mark.parametrize("order", [("a", "x", "b", "c", "y", "d"), ("a", "b", "c", "d", "x", "y")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_parts_at_once_are_each_part_alone(scale: float, order: tuple, dtype: torch.dtype) -> None:
    """Inputs, predictions and losses of a flat network, whatever the size of its logits and the order of the parts."""
    models = [columns(flat, order).to(dtype) for flat in (True, False)]
    assert models[0].head._flat_map(models[0].flow) is not None
    generator = torch.Generator().manual_seed(0)
    u = (torch.randn(8, models[0].flow.state_shape(None)[0], generator=generator) * 3).to(dtype)
    level = models[0].flow.noise_level(torch.linspace(0.1, 0.9, 8, dtype=torch.float64), 8, 1, u)
    for model in models:
        model.network.scale = scale
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1}[dtype]
    ours, theirs = (model.head.inputs(model.flow, u, level) for model in models)
    theirs = torch.cat([x.reshape(8, -1) for x in theirs.values()], 1)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    raw = scale * theirs @ models[0].network.mix
    pieces = dict(zip(order, raw.split([COLUMNS[k] or 1 for k in order], 1), strict=True))
    apart = {k: x if COLUMNS[k] else x[:, 0] for k, x in pieces.items()}
    ours, theirs = (m.head.output(m.flow, given, u, level) for m, given in zip(models, (raw, apart), strict=True))
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=tolerance, atol=tolerance)
    assert list(ours.parts) == list(order)
    assert all(torch.equal(ours.parts[k].mean, theirs.parts[k].mean) for k in order)
    x = models[0].flow.pack(data_of(8), models[0].data_shape)
    ours, theirs = (own.fit_errors(x) for own in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=max(1e-4, tolerance), atol=max(1e-5, tolerance))


def test_all_parts_at_once_have_the_samples_and_gradients_of_each() -> None:
    samples, gradients = [], []
    for flat in (True, False):
        model = columns(flat)
        samples.append(model.sample(3, nfe=4, seed=0).final)
        model.loss(data_of(5), generator=torch.Generator().manual_seed(1)).mean().backward()
        gradients.append(model.network.mix.grad)
    torch.testing.assert_close(*samples)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_a_network_that_is_told_levels_can_tell_a_given_number_from_noise() -> None:
    plain = columns(flat=True)
    told = JointHead.make(plain.head.parts, plain.flow, flat=True, levels=True)
    level = plain.flow.noise_level(0.5, 6, 1, torch.empty(0))
    u = torch.randn(6, 54)
    shown = told.inputs(plain.flow, u, level)
    torch.testing.assert_close(shown[:, :54], plain.head.inputs(plain.flow, u, level))
    s = torch.stack([plain.flow.parts[name].schedule.s(torch.tensor(0.5).double()) for name in "xy"])
    torch.testing.assert_close(shown[:, 54:], (s.log1p() / 4).float().expand(6, 2))


def test_a_network_of_one_vector_is_told_the_time_of_each_part(tmp_path) -> None:
    flow = JointFlow(x=ContinuousFlow(0.1), kind=DiscreteFlow.with_separation(2), times="separate")
    head = JointHead.make({"x": PreconditionedHead(1.0), "kind": "logits"}, flow, flat=True)
    model = BFN(bfn.networks.MLP(3, width=8, n_times=2), flow, head, {"x": (1,), "kind": ()})
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    again = bfn.load(model.save(tmp_path))
    ours, theirs = (m.sample(4, "fast-ode", 5, path="kind", seed=0).final for m in (model.eval(), again))
    assert torch.equal(ours, theirs)
    early, late = (again.network(torch.zeros(1, 3), torch.tensor([times])) for times in ([0.2, 0.9], [0.9, 0.2]))
    assert not torch.allclose(early, late)
