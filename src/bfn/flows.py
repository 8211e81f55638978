"""Old module name; see :mod:`bfn.core.flows`."""

from bfn.core.flows import DEFAULT_REST, ContinuousFlow, DiscreteFlow, Flow, NoiseLevel, PartFlow, Shape

__all__ = ["FLOWS", "REST", "ContinuousFlow", "DiscreteFlow", "Flow", "NoiseLevel", "PartFlow", "Shape"]

FLOWS: dict[str, type[PartFlow]] = {"continuous": ContinuousFlow, "discrete": DiscreteFlow}
"""Flows of one kind of data, by name."""

REST = DEFAULT_REST
"""Standard deviation that is still unknown at t = 1, relative to that of the data."""
