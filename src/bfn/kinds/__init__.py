"""Heads and outputs of all kinds of data: numbers, classes, discretised numbers and angles."""

from bfn.core.flows import NoiseLevel
from bfn.core.heads import (
    HEADS,
    Categorical,
    DataHead,
    FlowMapHead,
    Head,
    LogitsHead,
    NoiseHead,
    Output,
    Point,
    PreconditionedHead,
    make_head,
    unknown_scale,
)  # fmt: skip
from bfn.core.joint import JointHead, JointOutput
from bfn.kinds.angles import AngleHead, VonMises, angles_of, pairs_of
from bfn.kinds.discretised import ClippedNoiseHead, DiscretisedHead, LogitHead

__all__ = [
    "HEADS", "AngleHead", "Categorical", "ClippedNoiseHead", "DataHead", "DiscretisedHead", "FlowMapHead", "Head",
    "JointHead", "JointOutput", "LogitHead", "LogitsHead", "NoiseHead", "NoiseLevel", "Output", "Point",
    "PreconditionedHead", "VonMises", "angles_of", "make_head", "pairs_of", "unknown_scale",
]  # fmt: skip
