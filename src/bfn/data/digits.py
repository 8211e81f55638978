"""scikit-learn's handwritten digits: 1,797 pictures of 8x8 pixels that need no download."""

from __future__ import annotations

import torch

from bfn.data.extras import require
from bfn.data.images import Images


def read_digits() -> Images:
    """The 8x8 digits, their pixels in 17 levels (0..16), with labels 0..9."""
    bunch = require("sklearn.datasets", "for the 8x8 digits").load_digits()
    x = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    return Images(x, torch.from_numpy(bunch.target).long(), levels=17, class_names=tuple("0123456789"))
