"""Sheets of molecules, drawn by RDKit: ``pip install 'bayesian-flow[chem]'``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bfn.data.optional_packages import require
from bfn.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["molecule_sheet"]

MOST_DRAWN = 100


def molecule_sheet(smiles: Sequence[str], captions: Sequence[str] = (), *, side: int = 180) -> Picture:
    """Molecules by their SMILES side by side, each with its caption, as nearly square as they come; at most 100.

    A string that is no molecule leaves its place empty.
    """
    if not smiles:
        raise UserError("no molecules: expected at least 1 to draw")
    chem, draw = (require(name, "to draw molecules") for name in ("rdkit.Chem", "rdkit.Chem.Draw"))
    base: Any = require("rdkit.rdBase", "to draw molecules")
    some = smiles[:MOST_DRAWN]
    with base.BlockLogs():
        molecules = [chem.MolFromSmiles(one) for one in some]
    picture: Picture = draw.MolsToGridImage(
        [chem.Mol() if one is None else one for one in molecules], molsPerRow=math.ceil(math.sqrt(len(some))),
        subImgSize=(side, side), legends=list(captions[:MOST_DRAWN]) or None, returnPNG=False,
    )  # fmt: skip
    return picture.convert("RGB")
