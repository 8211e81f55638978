"""Old names of ``bfn.core.sampling``, until their importers have moved."""

from bfn.core.control import End
from bfn.core.sampling import Range, Run, Step, integrate

__all__ = ["End", "Range", "Run", "Step", "walk"]

walk = integrate
