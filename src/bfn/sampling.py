"""Old names of ``bfn.core.sampling``, until its importers have moved."""

from typing import Any

from bfn.core.control import End
from bfn.core.sampling import MOST_NUMBERS, Run, Samples, Step, clip_range, sample

__all__ = ["MOST_NUMBERS", "End", "Run", "Samples", "Step", "clip_range", "sample", "undisturbed"]

def undisturbed(**settings: Any) -> bool:
    """Return True if no setting changes the network's predictions."""
    temperature = settings.get("temperature", 1.0)
    usual = isinstance(temperature, int | float) and temperature == 1
    names = ("known", "known_mask", "steer", "allowed", "guidance", "particles")
    return usual and all(settings.get(name) is None for name in names)
