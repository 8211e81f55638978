"""A property of molecules estimated from what they are made of, by a judge that has no part in any model of them.

A small network on Morgan fingerprints (Rogers and Hahn, 2010): how often each piece of a molecule, an atom with its
neighbours up to some bonds away, is in it. ``tools/train_property_judge.py`` trains the bundled one again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bfn.data.optional_packages import require
from bfn.files import atomic
from bfn.quality.molecules import KnownMolecules
from bfn.quality.second_judge import JUDGES

__all__ = ["MoleculeJudge", "PropertyNetwork", "fingerprints", "molecule_judge"]

N_PIECES, RADIUS = 2048, 3


def fingerprints(canonical: Sequence[str]) -> Tensor:
    """How often each of 2,048 kinds of pieces is in each molecule, uint8 (n, 2048)."""
    chem = require("rdkit.Chem", "to read molecules")
    generator = require("rdkit.Chem.rdFingerprintGenerator", "to read molecules").GetMorganGenerator(
        radius=RADIUS, fpSize=N_PIECES
    )
    rows = [generator.GetCountFingerprintAsNumPy(chem.MolFromSmiles(one)).clip(0, 255) for one in canonical]
    return torch.from_numpy(np.array(rows, dtype=np.uint8).reshape(-1, N_PIECES))


class PropertyNetwork(nn.Module):
    """Fingerprints (n, 2048) -> a property each (n,), in its own unit."""

    scale: Tensor

    def __init__(self, mean: float = 0.0, std: float = 1.0, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(N_PIECES, width), nn.SiLU(), nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1)
        )
        self.register_buffer("scale", torch.tensor([mean, std]))

    def forward(self, pieces: Tensor) -> Tensor:
        """Estimate; counts are taken as log(1 + count)."""
        standard: Tensor = self.layers(pieces.float().log1p()).squeeze(-1)
        return self.scale[0] + self.scale[1] * standard


@dataclass(frozen=True, eq=False)
class MoleculeJudge:
    """What is bundled to judge molecules of one data set by: those of its training part, and properties estimated.

    networks: by the name of the property. metadata: where they come from, and how good they are on held-out molecules.
    """

    known: KnownMolecules
    networks: Mapping[str, PropertyNetwork]
    metadata: Mapping[str, str]

    @torch.no_grad()
    def estimate(self, name: str, canonical: Sequence[str]) -> Tensor:
        """A property of molecules, (n,)."""
        found: Tensor = self.networks[name](fingerprints(canonical))
        return found

    def save(self, path: Path) -> None:
        """Write a safetensors file, atomically, weights in float16."""
        tensors = {"known": self.known.hashes}
        for name, network in self.networks.items():
            for key, value in network.state_dict().items():
                tensors[f"{name}.{key}"] = value.half().contiguous() if value.ndim > 1 else value
        with atomic(path) as temporary:
            save_file(tensors, temporary, dict(self.metadata))


def molecule_judge(name: Any) -> MoleculeJudge | None:
    """The bundled judge of the data set of that name, None where there is none."""
    path = JUDGES / f"{name}.safetensors"
    if not isinstance(name, str) or "/" in name or not path.is_file():
        return None
    with safetensors.safe_open(path, framework="pt") as file:
        metadata, keys = file.metadata() or {}, list(file.keys())
        if "known" not in keys:
            return None
        networks = {}
        for own in sorted({key.partition(".")[0] for key in keys if "." in key}):
            state = {key.partition(".")[2]: file.get_tensor(key).float() for key in keys if key.startswith(f"{own}.")}
            networks[own] = PropertyNetwork(width=len(state["layers.0.bias"]))
            networks[own].load_state_dict(state)
        return MoleculeJudge(KnownMolecules(file.get_tensor("known")), networks, metadata)
