"""Heads: from what a network puts out to a distribution over data, the paper's p_O(x | theta; t).

A head says what the network is shown and what its output means.
"""

from bfn.errors import UserError, did_you_mean
from bfn.flows import Flow
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

HEADS: dict[str, type[Head]] = {
    "noise": NoiseHead,
    "data": DataHead,
    "preconditioned": PreconditionedHead,
    "discretised": DiscretisedHead,
    "clipped-noise": ClippedNoiseHead,
    "angle": AngleHead,
    "logits": LogitsHead,
    "logit": LogitHead,
}
"""Heads by the name that ``BFN(predicts=...)`` takes."""


def make_head(predicts: str | Head, flow: Flow) -> Head:
    """The head of that name, or the head itself, checked against the kind of data."""
    if isinstance(predicts, Head):
        if predicts.kind != flow.kind:
            raise UserError(f"predicts={predicts}: it is for {predicts.kind} data, the flow is {flow.kind}")
        return predicts
    fitting = [name for name, head in HEADS.items() if head.kind == flow.kind]
    if predicts not in HEADS:
        hint = did_you_mean(predicts, fitting)
        raise UserError(f"predicts={predicts!r}: expected one of {', '.join(fitting)}{hint}")
    if predicts not in fitting:
        raise UserError(
            f"predicts={predicts!r} is for {HEADS[predicts].kind} data: {flow.kind} data take {', '.join(fitting)}"
        )
    return HEADS[predicts]()
