"""Molecules as strings: which are valid, which are the same, which are new, and what they are like (RDKit).

    molecules = Molecules.read(model.decode(out.x, out.present))
    molecules.validity(), molecules.uniqueness(), molecules.novelty(KnownMolecules.of(training))

A string is valid where RDKit reads a molecule from it that obeys the rules of valence; two strings are the same
molecule where RDKit's canonical SMILES of both are the same. Needs RDKit, and ``selfies`` for strings of that notation:
``pip install 'bayesian-flow[chem]'``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bfn.data.optional_packages import require
from bfn.errors import UserError
from bfn.estimate import Estimate, bootstrap_estimates, share_estimate

__all__ = ["DESCRIPTORS", "KnownMolecules", "Molecules", "descriptor_distances", "descriptors", "smiles_of"]

DESCRIPTORS = ("logP", "weight", "QED", "rings")
"""What molecules are described by: octanol-water partition, mass in daltons, drug-likeness, number of rings."""
LEVELS = 400
"""Quantiles by which two distributions are compared."""
PURPOSE = "to read molecules"


@dataclass(frozen=True)
class Molecules:
    """Strings and what they stand for.

    texts: as they were drawn. canonical: RDKit's canonical SMILES of each, None where it is no molecule.
    """

    texts: tuple[str, ...]
    canonical: tuple[str | None, ...]

    @classmethod
    def read(cls, texts: Iterable[str], notation: str = "smiles") -> Self:
        """From strings of that notation: ``smiles`` or ``selfies``."""
        chem, base, listed = require("rdkit.Chem", PURPOSE), require("rdkit.rdBase", PURPOSE), tuple(texts)

        def canonical(smiles: str) -> str | None:
            molecule = chem.MolFromSmiles(smiles) if smiles else None
            return str(chem.MolToSmiles(molecule)) if molecule is not None and molecule.GetNumAtoms() else None

        with base.BlockLogs():  # else a line is printed for each string that cannot be read
            return cls(listed, tuple(map(canonical, smiles_of(listed, notation))))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def valid(self) -> tuple[str, ...]:
        """Canonical SMILES of the valid ones, in their order."""
        return tuple(one for one in self.canonical if one is not None)

    @cached_property
    def unique(self) -> tuple[str, ...]:
        """The different molecules among the valid ones, as they come first."""
        return tuple(dict.fromkeys(self.valid))

    def validity(self) -> Estimate:
        """Share of the strings that are molecules."""
        return share_estimate(len(self.valid), len(self))

    def uniqueness(self) -> Estimate:
        """Share of the valid ones that are different molecules; it falls with their number."""
        return _share(len(self.unique), len(self.valid))

    def novelty(self, known: KnownMolecules) -> Estimate:
        """Share of the different molecules that are not among those known."""
        return _share(sum(not found for found in known.contain(self.unique)), len(self.unique))


@dataclass(frozen=True, eq=False)
class KnownMolecules:
    """Many molecules to look others up in: 32 bits of a hash of the canonical SMILES of each, sorted, int32 (n,).

    Of 100,000 known molecules one in 40,000 new ones is taken for known. RDKit's canonical SMILES may change with its
    version, and these with them.
    """

    hashes: Tensor

    @classmethod
    def of(cls, canonical: Iterable[str]) -> Self:
        """Molecules by their canonical SMILES."""
        return cls(torch.from_numpy(np.unique(_hashes(canonical))))

    def __len__(self) -> int:
        return len(self.hashes)

    def contain(self, canonical: Sequence[str]) -> list[bool]:
        """Whether each is known."""
        return [bool(found) for found in np.isin(_hashes(canonical), self.hashes.numpy())]


def smiles_of(texts: Sequence[str], notation: str) -> list[str]:
    """Strings of any notation as SMILES; an empty one where a string cannot be read."""
    if notation == "smiles":
        return list(texts)
    if notation != "selfies":
        raise UserError(f"notation={notation!r}: expected smiles or selfies")
    selfies = require("selfies", PURPOSE)

    def translated(text: str) -> str:
        try:
            return str(selfies.decoder(text))
        except selfies.DecoderError:
            return ""

    return [translated(text) for text in texts]


def descriptors(canonical: Sequence[str]) -> Tensor:
    """:data:`DESCRIPTORS` of molecules, (n, 4) in float64."""
    chem, kit, qed = (require(f"rdkit.Chem{name}", PURPOSE) for name in ("", ".Descriptors", ".QED"))
    rows = [
        (kit.MolLogP(molecule), kit.MolWt(molecule), qed.qed(molecule), kit.RingCount(molecule))
        for molecule in map(chem.MolFromSmiles, canonical)
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, len(DESCRIPTORS))


def descriptor_distances(ours: Tensor, real: Tensor, *, generator: torch.Generator) -> list[Estimate]:
    """How far the distribution of each descriptor, (n, k), is from that of real molecules, (m, k).

    The Wasserstein distance, in standard deviations of the real ones: the mean distance of quantiles. Above 0 for real
    molecules too, the more so the fewer they are.
    """
    levels = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    scale = real.std(0).clamp(min=1e-9)
    expected = real.quantile(levels, dim=0) / scale

    def distances(index: Tensor) -> Tensor:
        return (ours[index].quantile(levels, dim=0) / scale - expected).abs().mean(0)

    return [figure.within(0) for figure in bootstrap_estimates(distances, len(ours), generator=generator)]


def _share(n_successes: int, n_trials: int) -> Estimate:
    """A share; of nothing it is 0, and may be anything."""
    return share_estimate(n_successes, n_trials) if n_trials else Estimate(0.0, 0.0, 1.0)


def _hashes(canonical: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
    digests = b"".join(hashlib.blake2b(one.encode(), digest_size=4).digest() for one in canonical)
    return np.frombuffer(digests, dtype="<i4").astype(np.int32)
