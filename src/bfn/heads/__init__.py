"""Heads: from what a network puts out to a distribution over data, the paper's p_O(x | theta; t).

A head says what the network is shown and what its output means.
"""

from difflib import get_close_matches

from bfn.flows import Flow
from bfn.heads.base import Categorical, Head, Output, Point
from bfn.heads.discretised import ClippedNoiseHead, DiscretisedHead, LogitHead
from bfn.heads.plain import NOISE_T_MIN, DataHead, LogitsHead, NoiseHead, PreconditionedHead, unknown_scale

__all__ = [
    "HEADS",
    "NOISE_T_MIN",
    "Categorical",
    "ClippedNoiseHead",
    "DataHead",
    "DiscretisedHead",
    "Head",
    "LogitHead",
    "LogitsHead",
    "NoiseHead",
    "Output",
    "Point",
    "PreconditionedHead",
    "make_head",
    "unknown_scale",
]

HEADS: dict[str, type[Head]] = {
    "noise": NoiseHead,
    "data": DataHead,
    "preconditioned": PreconditionedHead,
    "discretised": DiscretisedHead,
    "clipped-noise": ClippedNoiseHead,
    "logits": LogitsHead,
    "logit": LogitHead,
}
"""Heads by the name that ``BFN(predicts=...)`` takes."""


def make_head(predicts: str, flow: Flow) -> Head:
    """The head of that name, checked against the kind of data."""
    fitting = [name for name, head in HEADS.items() if head.kind == flow.kind]
    if predicts not in HEADS:
        near = get_close_matches(predicts, fitting, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"predicts={predicts!r}: expected one of {', '.join(fitting)}{hint}")
    if predicts not in fitting:
        raise ValueError(
            f"predicts={predicts!r} is for {HEADS[predicts].kind} data: {flow.kind} data take {', '.join(fitting)}"
        )
    return HEADS[predicts]()
