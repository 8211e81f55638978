"""Heads: from what a network puts out to a distribution over data, the paper's p_O(x | theta; t).

A head says what the network is shown and what its output means.
"""

from collections.abc import Mapping

from bfn.core.flows import Flow, PartFlow
from bfn.core.registry import Registry, registry
from bfn.errors import UserError, did_you_mean
from bfn.heads.angle import AngleHead, VonMises, angles_of, pairs_of
from bfn.heads.base import Categorical, Head, Output, Point, unknown_scale
from bfn.heads.basic import DataHead, LogitsHead, NoiseHead, PreconditionedHead
from bfn.heads.discretised import ClippedNoiseHead, DiscretisedHead, LogitHead
from bfn.heads.flow_map import FlowMapHead

__all__ = [
    "HEADS",
    "AngleHead",
    "Categorical",
    "ClippedNoiseHead",
    "DataHead",
    "DiscretisedHead",
    "FlowMapHead",
    "Head",
    "LogitHead",
    "LogitsHead",
    "NoiseHead",
    "Output",
    "Point",
    "PreconditionedHead",
    "VonMises",
    "angles_of",
    "make_head",
    "pairs_of",
    "unknown_scale",
]

HEADS: Registry[type[Head]] = registry("head")
"""Heads by the name that ``BFN(predicts=...)`` takes."""


def make_head(predicts: str | Head | Mapping[str, str | Head], flow: Flow) -> Head:
    """Make the head of that name, or one for each part, and check that it fits the data."""
    if isinstance(predicts, Head):
        own = getattr(flow, "kind", None)
        if predicts.kind != own:
            raise UserError(f"predicts={predicts}: it is for {predicts.kind} data, the flow is {own}")
        return predicts
    named = flow.by_part("predicts", predicts)
    if set(named) != set(flow.parts):
        raise UserError(f"predicts={dict(named)}: expected a head for each of the parts {', '.join(flow.parts)}")
    heads = flow.from_parts({name: _part_head(named[name], part) for name, part in flow.parts.items()})
    if isinstance(heads, Head):
        return heads
    joint: Head = HEADS["joint"](heads)  # type: ignore[call-arg]
    return joint


def _part_head(predicts: str | Head, flow: PartFlow) -> Head:
    """Make the head of one part."""
    if isinstance(predicts, Head):
        return make_head(predicts, flow)
    if predicts in HEADS and HEADS[predicts].kind == flow.kind:
        return HEADS[predicts]()
    fitting = [name for name, head in HEADS.items() if head.kind == flow.kind]
    if predicts in HEADS:
        kind = HEADS[predicts].kind
        raise UserError(f"predicts={predicts!r} is for {kind} data: {flow.kind} data take {', '.join(fitting)}")
    hint = did_you_mean(predicts, fitting)
    raise UserError(f"predicts={predicts!r}: expected one of {', '.join(fitting)}{hint}")
