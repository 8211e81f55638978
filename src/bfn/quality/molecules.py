"""Molecules as strings: which are valid, which are the same, which are new, and what they are like (RDKit).

    molecules = Molecules.read(model.decode(out.x, out.present))
    molecules.validity(), molecules.uniqueness(), molecules.novelty(KnownMolecules.of(training))

A string is valid where RDKit reads a molecule from it that obeys the rules of valence; two strings are the same
molecule where RDKit's canonical SMILES of both are the same. Needs RDKit, and ``selfies`` for strings of that notation:
``pip install 'bayesian-flow[chem]'``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bfn._utils.arguments import require
from bfn._utils.estimate import Estimate, bootstrap_estimates, share_estimate
from bfn._utils.files import atomic, home
from bfn._utils.pieces import digest
from bfn._utils.progress import over
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.data.encoding import read_model_data
from bfn.data.loading import Part
from bfn.data.tokenizers import Tokenizer
from bfn.quality.features import cached_statistics
from bfn.quality.frechet import FeatureStatistics, expected_bias, frechet_estimate
from bfn.quality.judge import JudgePart, Measure, ReferenceData, without_padding
from bfn.quality.second_judge import JUDGES

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
