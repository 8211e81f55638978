"""How a judge takes molecules: the Frechet ChemNet distance; shares that are valid, unique and new; what they are like.

All intervals are at 95 %: of the linearised distance for the Frechet ChemNet distance, since a bootstrap of 512
features takes minutes; Wilson's for shares; bootstrap for distances of distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data import Part, Tokenizer
from bfn.data.optional_packages import require
from bfn.errors import UserError
from bfn.estimate import Estimate
from bfn.files import atomic, home
from bfn.model import Model
from bfn.model_data import read_model_data
from bfn.pieces import digest
from bfn.progress import over
from bfn.quality.features import cached_statistics
from bfn.quality.frechet import FeatureStatistics, expected_bias, frechet_estimate
from bfn.quality.judge import JudgePart, Measure
from bfn.quality.molecules import DESCRIPTORS, KnownMolecules, Molecules, descriptor_distances, descriptors
from bfn.quality.reference_data import ReferenceData, without_padding

__all__ = ["ChemNetDistance", "MoleculeShares", "chemnet_features", "molecule_parts", "read_molecules"]

N_CHEMNET, CHEMNET_BATCH = 512, 128
EXTRACTOR = "ChemNet of fcd 1.2"
MOST_DESCRIBED = 2000
"""Molecules whose distribution of descriptors is looked at, at most: drug-likeness takes a millisecond each."""


def chemnet_features(canonical: Sequence[str], *, progress: bool = False) -> Tensor:
    """What ChemNet, a network that predicts what molecules do to cells, makes of them: (n, 512) (Preuer et al., 2018).

    The weights come with the package ``fcd``. As there, strings are padded to 350 symbols; shorter ones would change
    the figures.
    """
    fcd, utils = require("fcd", "for the Frechet ChemNet distance"), require("fcd.utils", "for the same")
    network, pieces = fcd.load_ref_model(), []
    batches = [canonical[i : i + CHEMNET_BATCH] for i in range(0, len(canonical), CHEMNET_BATCH)]
    for some in over(batches, "ChemNet", "batch", progress):
        data = utils.SmilesDataset(list(some))
        x = torch.stack([torch.from_numpy(data[i]).float() for i in range(len(data))])
        with torch.no_grad():
            pieces.append(network(x.transpose(1, 2)))
    return torch.cat(pieces) if pieces else torch.empty(0, N_CHEMNET)


@dataclass(frozen=True, eq=False)
class _MoleculePart(JudgePart):
    """What both parts need: how classes become strings. -1 stands for no token."""

    tokenizer: Tokenizer

    def read(self, x: Tensor) -> Molecules:
        """The molecules that samples stand for."""
        texts = self.tokenizer.decode(x.clamp(min=0), x >= 0)
        return Molecules.read(texts, self.tokenizer.notation or "smiles")


@dataclass(frozen=True, eq=False)
class ChemNetDistance(_MoleculePart):
    """The Frechet ChemNet distance of the valid molecules from held-out ones."""

    reference: FeatureStatistics
    measures = (Measure("frechet", "Frechet ChemNet distance", "low", digits=2),)

    @property
    def key(self) -> str:
        return digest("chemnet", self.reference.mean, self.reference.covariance)

    def problem(self, n: int) -> str | None:
        if n > N_CHEMNET:
            return None
        bias = expected_bias(self.reference.covariance, n, self.reference.n)
        return (
            f"n={n}: the Frechet ChemNet distance needs more than {N_CHEMNET} valid samples, its number of features; "
            f"it would come out about {bias:.3g} too large"
        )

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return {"frechet": self.distance(self.read(x).valid)}

    def distance(self, canonical: Sequence[str]) -> Estimate:
        """Of molecules by their canonical SMILES; without a figure, infinite, where too few are valid."""
        if len(canonical) <= N_CHEMNET:
            return Estimate(float("inf"))
        generator = torch.Generator().manual_seed(0)
        return frechet_estimate(chemnet_features(canonical), self.reference, generator=generator, n_resamples=0)


@dataclass(frozen=True, eq=False)
class MoleculeShares(_MoleculePart):
    """Shares that are valid, unique among those, new among these; and the descriptors' distance from real molecules."""

    known: KnownMolecules
    real: Tensor
    measures = (
        Measure("valid", "valid", "high", "%", 100, 1, highest=1.0),
        Measure("unique", "unique of the valid", "high", "%", 100, 1, highest=1.0),
        Measure("new", "new of the unique", "real", "%", 100, 1, headline=False, highest=1.0),
        *(
            Measure(f"{name.lower()}_distance", f"distance of {name}", "low", "standard deviations", digits=3)
            for name in DESCRIPTORS
        ),
    )

    @property
    def key(self) -> str:
        return digest("molecules", str(MOST_DESCRIBED), self.known.hashes, self.real)

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 samples"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        molecules = self.read(x)
        some = descriptors(_evenly(molecules.valid))
        distances = (
            descriptor_distances(some, self.real, generator=torch.Generator().manual_seed(0))
            if len(some) > 1
            else [Estimate(float("inf"))] * len(DESCRIPTORS)
        )
        figures = (molecules.validity(), molecules.uniqueness(), molecules.novelty(self.known), *distances)
        return {measure.key: figure for measure, figure in zip(self.measures, figures, strict=True)}


def read_molecules(model: Model, source: str | Path) -> ReferenceData:
    """Molecules as classes, -1 where there are none: the test part is the reference, the validation part held out."""
    parts: tuple[Part, ...] = ("test", "validation", "train")
    test, validation, train = (without_padding(read_model_data(model, source, part)) for part in parts)
    return ReferenceData(test, validation, train=train)


def molecule_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    """The two parts, with the statistics of real molecules; what takes long of these is kept in the cache."""
    tokenizer = model.info.text_tokenizer
    assert tokenizer is not None
    version, cache = require("rdkit", "to read molecules").__version__, home() / "features"
    seen, held_out = (digest(*tokenizer.pieces, version, x) for x in (real.train, real.reference))

    def gather() -> FeatureStatistics:
        return FeatureStatistics.of(chemnet_features(_canonical(real.reference, tokenizer), progress=True))

    statistics = cached_statistics(cache / f"chemnet-{held_out}.safetensors", gather, name=EXTRACTOR)
    known = _cached_known(cache / f"molecules-{seen}.npy", lambda: _canonical(real.train, tokenizer))
    described = descriptors(_canonical(_evenly(real.reference), tokenizer))
    return [ChemNetDistance(tokenizer, statistics), MoleculeShares(tokenizer, known, described)]


def _evenly(all_of_them: Any) -> Any:
    """As many as are described, from all over: QM9, for one, is in the order of size."""
    return all_of_them[:: -(-len(all_of_them) // MOST_DESCRIBED) or 1]


def _canonical(x: Tensor, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Canonical SMILES of real molecules; one that RDKit cannot read is an error that names it."""
    if not len(x):
        return ()
    found = Molecules.read(tokenizer.decode(x.clamp(min=0), x >= 0), tokenizer.notation or "smiles")
    wrong = next((text for text, one in zip(found.texts, found.canonical, strict=True) if one is None), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} among the real molecules: RDKit cannot read it; mend the record or remove it")
    return found.valid


def _cached_known(path: Path, make: Callable[[], Sequence[str]]) -> KnownMolecules:
    if path.is_file():
        return KnownMolecules(torch.from_numpy(np.load(path, allow_pickle=False)))
    known = KnownMolecules.of(make())
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.save(file, known.hashes.numpy())
    return known
