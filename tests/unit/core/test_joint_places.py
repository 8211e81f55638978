"""All parts at once against each part alone."""

import pytest
import torch

from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.heads import LogitsHead, PreconditionedHead
from bfn.core.joint import FlatOutput, JointFlow, JointHead, JointOutput

SHAPES = {"a": (2,), "k": (), "b": (3,), "x": ()}


@pytest.fixture
def flow():
    return JointFlow(a=ContinuousFlow(0.05), k=DiscreteFlow(4), b=DiscreteFlow(2), x=ContinuousFlow(0.02)).for_shape(
        SHAPES
    )


@pytest.fixture
def x(flow):
    parts = {"a": torch.randn(6, 2), "k": torch.arange(6) % 4, "b": torch.randint(0, 2, (6, 3)), "x": torch.randn(6)}
    return flow.pack(parts, SHAPES)


@pytest.mark.parametrize("s", [0.7, torch.rand(6, 13) + 0.1, torch.rand(1, 13) + 0.1])
def test_noise_and_messages_are_those_of_the_parts(flow, x, s):
    eps = torch.randn(6, 13)
    alone = JointFlow(flow.parts).for_shape(SHAPES)
    alone.__dict__["_places"] = None
    if isinstance(s, torch.Tensor):  # all classes of a variable have the same
        s = alone.over_variables(flow.split(s[:, :7]) and s[:, :7].expand(6, -1), eps)[: len(s)]
    torch.testing.assert_close(flow.noised(x, s, eps), alone.noised(x, s, eps))
    torch.testing.assert_close(flow.message(x), alone.message(x))
    mask = torch.rand(6, 7) < 0.5
    assert torch.equal(flow.over_variables(mask, eps), alone.over_variables(mask, eps).expand(6, 13))


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_what_training_makes_small_is_the_same_for_all_parts_at_once(flow, x, scale):
    heads = {name: LogitsHead() if own.n_values else PreconditionedHead(1.0) for name, own in flow.parts.items()}
    head = JointHead.make(heads, flow, flat=True)
    level = flow.noise_level(torch.rand(6, dtype=torch.float64), 6, 1, torch.empty(0))
    u, raw = torch.randn(6, 13), scale * torch.randn(6, 13)
    output = head.output(flow, raw, u, level)
    assert isinstance(output, FlatOutput)
    errors = output.fit_errors(x)
    torch.testing.assert_close(
        errors, JointOutput(output.layout, dict(output.parts)).fit_errors(x), rtol=1e-4, atol=1e-5
    )
    classes = flow.over_data({name: torch.tensor(own.n_values is not None) for name, own in flow.parts.items()}, 1)
    torch.testing.assert_close(errors[:, classes], -output.log_prob(x)[:, classes], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(errors[:, ~classes], flow.errors(x, output.mean)[:, ~classes])


def test_a_network_that_is_told_levels_can_tell_a_given_number_from_noise(flow, x):
    heads = {name: LogitsHead() if own.n_values else PreconditionedHead(1.0) for name, own in flow.parts.items()}
    plain, told = (JointHead.make(heads, flow, flat=True, levels=levels) for levels in (False, True))
    level = flow.noise_level(0.5, 6, 1, torch.empty(0))
    u = torch.randn(6, 13)
    shown = told.inputs(flow, u, level)
    assert shown.shape == (6, 16)
    torch.testing.assert_close(shown[:, :13], plain.inputs(flow, u, level))
    s = torch.stack([flow.parts[name].schedule.s(torch.tensor(0.5).double()) for name in "aax"])
    torch.testing.assert_close(shown[:, 13:], (s.log1p() / 4).float().expand(6, 3))
