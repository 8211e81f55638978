"""Old module name; see :mod:`bfn.core.joint`."""

from bfn.core.joint import FlatOutput, JointHead, JointOutput

__all__ = ["FlatOutput", "JointHead", "JointOutput"]
