"""Old module name; see :mod:`bfn.core.joint`."""

from bfn.core.joint import JointFlow, flat
from bfn.core.joint import SlicedPart as Part

__all__ = ["JointFlow", "Part", "flat"]
