"""Old module name; see :mod:`bfn.core.flows`."""

from bfn.core.flows import NoiseLevel, Shape

__all__ = ["NoiseLevel", "Shape"]
