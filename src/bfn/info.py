"""Old module name; see :mod:`bfn.core.info`, :mod:`bfn.core.codec` and :mod:`bfn.conditions`."""

from bfn.conditions import NO_CLASS, Classes, Label
from bfn.core.codec import Scaling
from bfn.core.info import LARGEST, ModelInfo

__all__ = ["LARGEST", "NO_CLASS", "Classes", "Label", "ModelInfo", "Scaling"]
