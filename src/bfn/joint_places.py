"""Old module name; see :mod:`bfn.core.flat`."""

from bfn.core.flat import Places

__all__ = ["Places"]
