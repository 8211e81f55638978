"""Old module name; see :mod:`bfn.core.flat`."""

from bfn.core.flat import FlatMap, Segments

__all__ = ["FlatMap", "Segments"]
