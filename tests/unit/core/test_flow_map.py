"""A head that shows the first state, where mu and theta show nothing."""

import pytest
import torch

from bfn.core.flows import ContinuousFlow, DiscreteFlow, NoiseLevel
from bfn.core.heads import DataHead, FlowMapHead, Head, LogitsHead, PreconditionedHead
from bfn.core.plain import from_plain, to_plain


@pytest.mark.parametrize(("flow", "head"), [(ContinuousFlow(), DataHead()), (DiscreteFlow(3), LogitsHead())])
def test_the_start_is_shown_and_later_states_as_before(flow, head):
    shown = FlowMapHead(head, 0.25)
    u = torch.randn(6, *flow.state_shape((4,)), generator=torch.Generator().manual_seed(0))

    def spread(of, t):
        return float(of.inputs(flow, u, flow.noise_level(t, 6, u.ndim - 1, like=u)).std(0).max())

    assert spread(head, 0.0) == 0
    assert spread(shown, 0.0) > 0.1
    # Times of the batch's own are floored one by one; beyond the floor nothing changes.
    late = float(flow.schedule.time_of_s(torch.tensor(0.3, dtype=torch.float64)))
    t = torch.tensor([0.0, late, 0.0, late, 1.0, 1.0], dtype=torch.float64)
    level = flow.noise_level(t, 6, u.ndim - 1, like=u)
    ours, theirs = shown.inputs(flow, u, level), head.inputs(flow, u, level)
    torch.testing.assert_close(ours[t > 0], theirs[t > 0])
    torch.testing.assert_close(ours[t == 0], head.inputs(flow, u, NoiseLevel(level.t, 0.25))[t == 0])


def test_it_is_stored_with_the_head_within():
    head = FlowMapHead(LogitsHead(), 0.25)
    assert from_plain(Head, to_plain(head), "head") == head
    assert (head.kind, head.starts_at_zero, head.shows_start) == ("discrete", True, True)
    assert PreconditionedHead().shows_start
    assert not LogitsHead().shows_start
