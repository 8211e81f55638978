"""Molecules as strings: which are valid, which are the same, which are new, and what properties they have (RDKit).

    molecules = Molecules.read(model.decode(out.x, out.present))
    molecules.validity(), molecules.uniqueness(), molecules.novelty(KnownMolecules.of(training))

A string is valid if RDKit reads a molecule from it that obeys the rules of valence. Two strings are the same molecule
if their canonical SMILES are the same. Needs RDKit, and ``selfies`` for strings of that notation:
``pip install 'bayesian-flow[chem]'``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bfn._utils.arguments import require
from bfn._utils.estimate import Estimate, bootstrap_estimates, share_estimate
from bfn._utils.files import atomic, home
from bfn._utils.pieces import digest
from bfn._utils.progress import over
from bfn.core.conditions import ConditionTensors
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.data.loading import read_model_data
from bfn.data.tokenizers import Tokenizer
from bfn.quality.features import cached_statistics
from bfn.quality.frechet import FeatureStatistics, frechet_estimate
from bfn.quality.judge import JudgePart, Measure, ReferenceData, generator, tokenizer_of, without_padding
from bfn.storage.models import read_header, read_weights

DESCRIPTORS = ("logP", "weight", "QED", "rings")
"""Descriptors of molecules: octanol-water partition, mass in daltons, drug-likeness, number of rings."""

LEVELS = 400
"""Number of quantiles by which two distributions are compared."""

PURPOSE = "to read molecules"

JUDGES = Path(__file__).parents[1] / "bundled" / "judges"
"""Folder of the bundled judges, one file for each data set, named after it."""


# --- molecules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Molecules:
    """Strings and the molecules that they stand for.

    Attributes:
        texts: the strings.
        canonical: canonical SMILES of each; None if it is no molecule.
    """

    texts: tuple[str, ...]
    canonical: tuple[str | None, ...]

    @classmethod
    def read(cls, texts: Iterable[str], notation: str = "smiles") -> Self:
        """Read strings of a notation, "smiles" or "selfies"."""
        chem, base, listed = require("rdkit.Chem", PURPOSE), require("rdkit.rdBase", PURPOSE), tuple(texts)

        def canonical(smiles: str) -> str | None:
            molecule = chem.MolFromSmiles(smiles) if smiles else None
            return str(chem.MolToSmiles(molecule)) if molecule is not None and molecule.GetNumAtoms() else None

        with base.BlockLogs():  # else RDKit prints a line for each string that it cannot read
            return cls(listed, tuple(map(canonical, smiles_of(listed, notation))))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def valid(self) -> tuple[str, ...]:
        """Canonical SMILES of the valid strings, in order."""
        return tuple(one for one in self.canonical if one is not None)

    @cached_property
    def unique(self) -> tuple[str, ...]:
        """The distinct molecules, in the order of their first string."""
        return tuple(dict.fromkeys(self.valid))

    def validity(self) -> Estimate:
        """Return the share of the strings that are molecules."""
        return share_estimate(len(self.valid), len(self))

    def uniqueness(self) -> Estimate:
        """Return the share of the valid strings that are distinct molecules. It decreases with their number."""
        return _share(len(self.unique), len(self.valid))

    def novelty(self, known: KnownMolecules) -> Estimate:
        """Return the share of the distinct molecules that are not among the known ones."""
        return _share(sum(not found for found in known.contain(self.unique)), len(self.unique))


@dataclass(frozen=True, eq=False)
class KnownMolecules:
    """A set of molecules, stored as hashes of 32 bits of their canonical SMILES.

    With 100,000 known molecules, one in 40,000 new ones is taken for known. The canonical SMILES may change with the
    version of RDKit, and the hashes with them.

    Attributes:
        hashes: sorted, int32, (n,).
    """

    hashes: Tensor

    @classmethod
    def of(cls, canonical: Iterable[str]) -> Self:
        """Make the set from canonical SMILES."""
        return cls(torch.from_numpy(np.unique(_hashes(canonical))))

    def __len__(self) -> int:
        return len(self.hashes)

    def contain(self, canonical: Sequence[str]) -> list[bool]:
        """Return for each canonical SMILES whether it is known."""
        return [bool(found) for found in np.isin(_hashes(canonical), self.hashes.numpy())]


def smiles_of(texts: Sequence[str], notation: str) -> list[str]:
    """Convert strings of a notation to SMILES; a string that cannot be read becomes an empty one."""
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
    """Compute the :data:`DESCRIPTORS` of molecules, (n, 4), float64."""
    chem, kit, qed = (require(f"rdkit.Chem{name}", PURPOSE) for name in ("", ".Descriptors", ".QED"))
    rows = [
        (kit.MolLogP(molecule), kit.MolWt(molecule), qed.qed(molecule), kit.RingCount(molecule))
        for molecule in map(chem.MolFromSmiles, canonical)
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, len(DESCRIPTORS))


def descriptor_distances(ours: Tensor, real: Tensor, *, generator: torch.Generator) -> list[Estimate]:
    """Return the Wasserstein distance of each descriptor from that of real molecules, in their standard deviations.

    The distance is the mean distance of quantiles. Real molecules have a distance above 0 too, which decreases with
    their number.

    Args:
        ours: descriptors, (n, k).
        real: descriptors of real molecules, (m, k).
        generator: source of the random numbers of the bootstrap.
    """
    levels = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    scale = real.std(0).clamp(min=1e-9)
    expected = real.quantile(levels, dim=0) / scale

    def distances(index: Tensor) -> Tensor:
        return (ours[index].quantile(levels, dim=0) / scale - expected).abs().mean(0)

    return [figure.within(0) for figure in bootstrap_estimates(distances, len(ours), generator=generator)]


def _share(n_successes: int, n_trials: int) -> Estimate:
    """Return a share; of nothing it is 0, with the interval [0, 1]."""
    return share_estimate(n_successes, n_trials) if n_trials else Estimate(0.0, 0.0, 1.0)


def _hashes(canonical: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
    digests = b"".join(hashlib.blake2b(one.encode(), digest_size=4).digest() for one in canonical)
    return np.frombuffer(digests, dtype="<i4").astype(np.int32)


# --- the bundled judges of molecules ----------------------------------------------------------------------------------

N_PIECES, RADIUS = 2048, 3


def fingerprints(canonical: Sequence[str]) -> Tensor:
    """Count in each molecule the fragments of 2,048 hashed kinds (Morgan fingerprints), uint8, (n, 2048)."""
    chem, kit = require("rdkit.Chem", PURPOSE), require("rdkit.Chem.rdFingerprintGenerator", PURPOSE)
    morgan = kit.GetMorganGenerator(radius=RADIUS, fpSize=N_PIECES)
    rows = [morgan.GetCountFingerprintAsNumPy(chem.MolFromSmiles(one)).clip(0, 255) for one in canonical]
    return torch.from_numpy(np.array(rows, dtype=np.uint8).reshape(-1, N_PIECES))


class PropertyNetwork(nn.Module):
    """A network that estimates a property from fingerprints: (n, 2048) -> (n,), in the unit of the property."""

    scale: Tensor

    def __init__(self, mean: float = 0.0, std: float = 1.0, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(N_PIECES, width), nn.SiLU(), nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1)
        )
        self.register_buffer("scale", torch.tensor([mean, std]))

    def forward(self, pieces: Tensor) -> Tensor:
        """Return the estimates. Counts enter as log(1 + count)."""
        standard: Tensor = self.layers(pieces.float().log1p()).squeeze(-1)
        return self.scale[0] + self.scale[1] * standard


@dataclass(frozen=True, eq=False)
class MoleculeJudge:
    """The bundled judge of the molecules of one data set.

    Attributes:
        known: the molecules of its training part.
        networks: networks that estimate properties, by name of the property.
        metadata: their origin, and their errors on held-out molecules.
    """

    known: KnownMolecules
    networks: Mapping[str, PropertyNetwork]
    metadata: Mapping[str, str]

    @torch.no_grad()
    def estimate(self, name: str, canonical: Sequence[str]) -> Tensor:
        """Estimate a property of molecules, (n,)."""
        found: Tensor = self.networks[name](fingerprints(canonical))
        return found


def molecule_judge(name: Any) -> MoleculeJudge | None:
    """Load the bundled judge of a data set by its name; None if there is none."""
    path = JUDGES / f"{name}.safetensors"
    if not isinstance(name, str) or "/" in name or not path.is_file():
        return None
    weights, networks = read_weights(path), {}
    for own in sorted({key.partition(".")[0] for key in weights if "." in key}):
        state = {key.removeprefix(f"{own}."): value for key, value in weights.items() if key.startswith(f"{own}.")}
        networks[own] = PropertyNetwork(width=len(state["layers.0.bias"]))
        networks[own].load_state_dict(state)
    return MoleculeJudge(KnownMolecules(weights["known"]), networks, read_header(path).metadata)


# --- measures ---------------------------------------------------------------------------------------------------------

N_CHEMNET, CHEMNET_BATCH = 512, 128
EXTRACTOR = "ChemNet of fcd 1.2"

MOST_DESCRIBED = 2000
"""Maximum number of molecules whose descriptors are computed: drug-likeness takes a millisecond for each."""


def chemnet_features(canonical: Sequence[str], *, progress: bool = False) -> Tensor:
    """Return the features of ChemNet, (n, 512): a network that predicts biological activity (Preuer et al., 2018).

    The weights come with the package ``fcd``. As in that package, strings are padded to 350 symbols, since the figures
    depend on it.
    """
    fcd, utils = (require(name, "for the Frechet ChemNet distance") for name in ("fcd", "fcd.utils"))
    if not canonical:
        return torch.empty(0, N_CHEMNET)
    network = fcd.load_ref_model()
    batches: Any = DataLoader(utils.SmilesDataset(list(canonical)), CHEMNET_BATCH)
    with torch.no_grad():
        return torch.cat([network(x.float().transpose(1, 2)) for x in over(batches, "ChemNet", "batch", progress)])


def _read(x: Tensor, tokenizer: Tokenizer) -> Molecules:
    """Read the molecules that samples stand for; -1 stands for padding."""
    return Molecules.read(tokenizer.decode(x.clamp(min=0), x >= 0), tokenizer.notation or "smiles")


@dataclass(frozen=True, eq=False)
class ChemNetDistance(JudgePart):
    """Frechet ChemNet distance of the valid molecules from held-out ones.

    Args:
        tokenizer: how classes become strings; -1 stands for padding.
        reference: statistics of the features of held-out molecules.
    """

    tokenizer: Tokenizer
    reference: FeatureStatistics
    measures = (Measure("frechet", "Frechet ChemNet distance", "low", digits=2),)

    @property
    def key(self) -> str:
        return digest("chemnet", self.reference.mean, self.reference.covariance)

    def problem(self, n: int) -> str | None:
        return self.reference.problem(n, "valid samples")

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return {"frechet": self.distance(_read(x, self.tokenizer).valid)}

    def distance(self, canonical: Sequence[str]) -> Estimate:
        """Return the distance of molecules, given by canonical SMILES; infinity if there are too few."""
        if len(canonical) <= N_CHEMNET:
            return Estimate(math.inf)
        return frechet_estimate(chemnet_features(canonical), self.reference, generator=generator(), n_resamples=0)


@dataclass(frozen=True, eq=False)
class MoleculeShares(JudgePart):
    """Shares of valid strings, of distinct and of new molecules, and distances of descriptors from real molecules.

    Args:
        tokenizer: how classes become strings; -1 stands for padding.
        known: molecules of the training part.
        real: descriptors of held-out molecules, (m, 4).
    """

    least = 2
    tokenizer: Tokenizer
    known: KnownMolecules
    real: Tensor
    measures = (
        Measure.share("valid", "valid", "high"),
        Measure.share("unique", "unique of the valid", "high"),
        Measure.share("new", "new of the unique", "real", headline=False),
        *(
            Measure(f"{name.lower()}_distance", f"distance of {name}", "low", "standard deviations", digits=3)
            for name in DESCRIPTORS
        ),
    )

    @property
    def key(self) -> str:
        return digest("molecules", str(MOST_DESCRIBED), self.known.hashes, self.real)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        molecules = _read(x, self.tokenizer)
        some = descriptors(_evenly_spaced(molecules.valid))
        distances = [Estimate(math.inf)] * len(DESCRIPTORS)
        if len(some) > 1:
            distances = descriptor_distances(some, self.real, generator=generator())
        figures = (molecules.validity(), molecules.uniqueness(), molecules.novelty(self.known), *distances)
        return {measure.key: figure for measure, figure in zip(self.measures, figures, strict=True)}


def read_molecules(model: Model, source: str | Path) -> ReferenceData:
    """Read molecules as classes, with -1 for padding. The test part is the reference, the validation part held out."""
    train, validation, test = (
        without_padding(read_model_data(model, source, part)) for part in ("train", "validation", "test")
    )
    return ReferenceData(test, validation, train=train)


def molecule_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    """Return both parts. The statistics of real molecules are kept in the cache directory."""
    tokenizer = tokenizer_of(model)
    version, cache = require("rdkit", PURPOSE).__version__, home() / "features"
    seen, held_out = (digest(*tokenizer.pieces, version, x) for x in (real.train, real.reference))

    def gather() -> FeatureStatistics:
        return FeatureStatistics.of(chemnet_features(_canonical(real.reference, tokenizer), progress=True))

    statistics = cached_statistics(cache / f"chemnet-{held_out}.safetensors", gather, name=EXTRACTOR)
    known = _cached_known(cache / f"molecules-{seen}.npy", lambda: _canonical(real.train, tokenizer))
    described = descriptors(_canonical(_evenly_spaced(real.reference), tokenizer))
    return [ChemNetDistance(tokenizer, statistics), MoleculeShares(tokenizer, known, described)]


def _evenly_spaced(molecules: Any) -> Any:
    """Return at most :data:`MOST_DESCRIBED` molecules from all over: those of QM9, for one, are sorted by size."""
    return molecules[:: -(-len(molecules) // MOST_DESCRIBED) or 1]


def _canonical(x: Tensor, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the canonical SMILES of real molecules. Raises UserError if RDKit cannot read one of them."""
    found = _read(x, tokenizer)
    wrong = next((text for text, one in zip(found.texts, found.canonical, strict=True) if one is None), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} among the real molecules: RDKit cannot read it; correct or remove the record")
    return found.valid


def _cached_known(path: Path, make: Callable[[], Sequence[str]]) -> KnownMolecules:
    if path.is_file():
        return KnownMolecules(torch.from_numpy(np.load(path, allow_pickle=False)))
    known = KnownMolecules.of(make())
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.save(file, known.hashes.numpy())
    return known


# --- reports for users ------------------------------------------------------------------------------------------------


def is_of_molecules(model: Model) -> bool:
    """Return True if the samples of the model are strings that stand for molecules."""
    tokenizer = model.info.text_tokenizer
    return tokenizer is not None and tokenizer.notation is not None


CORRELATION = Measure("correlation", "correlation", "high")


@dataclass(frozen=True)
class PropertyReport:
    """A property that was asked for, and its estimates by a judge that is independent of the model.

    Attributes:
        name: name of the property.
        asked: what was asked for, for each valid molecule; NaN for nothing.
        estimated: the estimate for each valid molecule.
        error: mean absolute error of the judge on held-out molecules.
    """

    name: str
    asked: tuple[float, ...]
    estimated: tuple[float, ...]
    error: str

    def line(self) -> str:
        """Return the report in words."""
        estimated = torch.tensor(self.estimated)
        spread = f" (deviation {estimated.std().item():.3f})" if len(estimated) > 1 else ""
        low, high = min(self.asked), max(self.asked)
        if any(map(math.isnan, self.asked)):
            wish = ""
        elif low == high:
            wish = f"asked {low:g}, "
        else:
            correlation = correlation_estimate(torch.tensor(self.asked), estimated)
            wish = f"asked {low:g} to {high:g}, correlation {CORRELATION.show(correlation)}, "
        return (
            f"{self.name}: {wish}estimated {estimated.mean().item():.3f} on average{spread}; the estimate itself is "
            f"off by {self.error} on average"
        )


@dataclass(frozen=True)
class MoleculeReport:
    """Counts and properties of molecules that were drawn.

    Attributes:
        molecules: the molecules.
        n_new: number of distinct molecules that are not in the training data; None if these are not known.
        n_known: number of molecules in the training data.
        properties: reports of properties.
    """

    molecules: Molecules
    n_new: int | None = None
    n_known: int | None = None
    properties: tuple[PropertyReport, ...] = ()

    def lines(self) -> list[str]:
        """Return the report in words."""
        n, valid, unique = (len(some) for some in (self.molecules, self.molecules.valid, self.molecules.unique))
        line = f"{valid} of {n} are molecules ({100 * valid / n:.0f} %), {unique} of these different"
        if self.n_new is not None:
            line += f", {self.n_new} of these not among the {self.n_known:,} of the training data"
        return [line, *(own.line() for own in self.properties if own.estimated)]

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "valid": len(self.molecules.valid), "unique": len(self.molecules.unique), "new": self.n_new,
            "canonical": list(self.molecules.canonical),
            "estimated": {own.name: [round(value, 5) for value in own.estimated] for own in self.properties},
        }  # fmt: skip


def report_molecules(model: Model, x: Tensor, present: Tensor | None, conditions: ConditionTensors) -> MoleculeReport:
    """Report on samples of a model of molecules. Needs RDKit.

    Args:
        model: the model.
        x: samples, (n, length).
        present: bool, like x, False for padding.
        conditions: conditions that the samples were drawn with, by name.
    """
    molecules = Molecules.read(model.decode(x, present), tokenizer_of(model).notation or "smiles")
    judge = molecule_judge(model.info.trained_on.get("name"))
    if judge is None:
        return MoleculeReport(molecules)
    rows, nothing = torch.tensor([one is not None for one in molecules.canonical]), torch.full((len(x),), torch.nan)
    properties = [
        PropertyReport(
            name, tuple(conditions.get(name, nothing).cpu()[rows].tolist()),
            tuple(judge.estimate(name, molecules.valid).tolist()),
            judge.metadata.get(f"{name} mean absolute error", "an unknown amount"),
        )
        for name in judge.networks
    ]  # fmt: skip
    n_new = sum(not found for found in judge.known.contain(molecules.unique))
    return MoleculeReport(molecules, n_new, len(judge.known), tuple(properties))


def correlation_estimate(a: Tensor, b: Tensor) -> Estimate:
    """Return Pearson's correlation of pairs (n,), with the interval of Fisher's transform if there are at least 4."""
    pairs = torch.stack((a.double(), b.double()))
    value = float(torch.corrcoef(pairs)[0, 1]) if pairs.shape[1] > 1 else math.nan
    if pairs.shape[1] < 4 or not abs(value) < 1:
        return Estimate(value)
    half = 1.959964 / (pairs.shape[1] - 3) ** 0.5
    return Estimate(value, math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half))
