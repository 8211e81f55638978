"""What a user is told of molecules that were drawn: how many are valid, unique, new, and what properties they have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bfn._utils.estimate import Estimate
from bfn.core.conditions import ConditionTensors
from bfn.core.model import Model
from bfn.quality.molecules import Molecules, molecule_judge


@dataclass(frozen=True)
class PropertyReport:
    """A property that was asked for, and what a judge that has no part in the model estimates of the valid molecules.

    asked, estimated: one a valid molecule. error: the judge's own mean absolute error on held-out molecules.
    """

    name: str
    asked: tuple[float, ...]
    estimated: tuple[float, ...]
    error: str

    def correlation(self) -> Estimate:
        """Of what was asked for and what was estimated."""
        return correlation_estimate(torch.tensor(self.asked), torch.tensor(self.estimated))

    def line(self) -> str:
        """In words."""
        estimated = torch.tensor(self.estimated)
        spread = f" (deviation {estimated.std().item():.3f})" if len(estimated) > 1 else ""
        low, high = min(self.asked), max(self.asked)
        wish = (
            "as it comes, " if any(map(math.isnan, self.asked))
            else f"asked {low:g}, " if low == high
            else f"asked {low:g} to {high:g}, correlation {_short(self.correlation())}, "
        )  # fmt: skip
        return (
            f"{self.name}: {wish}estimated {estimated.mean().item():.3f} on average{spread}; the estimate itself is "
            f"off by {self.error} on average"
        )


@dataclass(frozen=True)
class MoleculeReport:
    """What is told of drawn molecules. n_new, n_known: None where it is not known what the model was trained on."""

    molecules: Molecules
    n_new: int | None = None
    n_known: int | None = None
    properties: tuple[PropertyReport, ...] = field(default=())

    def lines(self) -> list[str]:
        """In words."""
        n, valid, unique = (len(some) for some in (self.molecules, self.molecules.valid, self.molecules.unique))
        line = f"{valid} of {n} are molecules ({100 * valid / n:.0f} %), {unique} of these different"
        if self.n_new is not None:
            line += f", {self.n_new} of these not among the {self.n_known:,} of the training data"
        return [line, *(own.line() for own in self.properties if own.estimated)]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"valid": len(self.molecules.valid), "unique": len(self.molecules.unique), "new": self.n_new}
        return {
            **counts,
            "canonical": list(self.molecules.canonical),
            "estimated": {own.name: [round(value, 5) for value in own.estimated] for own in self.properties},
        }


def is_of_molecules(model: Model) -> bool:
    """Whether the model's samples are strings that stand for molecules."""
    tokenizer = model.info.text_tokenizer
    return tokenizer is not None and tokenizer.notation is not None


def report_molecules(model: Model, x: Tensor, present: Tensor | None, conditions: ConditionTensors) -> MoleculeReport:
    """Of samples, (n, length), as the model gives them, and what they were asked for by; needs RDKit."""
    tokenizer = model.info.text_tokenizer
    assert tokenizer is not None
    molecules = Molecules.read(model.decode(x, present), tokenizer.notation or "smiles")
    judge = molecule_judge(model.info.trained_on.get("name"))
    if judge is None:
        return MoleculeReport(molecules)
    rows = torch.tensor([one is not None for one in molecules.canonical])
    properties = [
        PropertyReport(
            name, tuple(_asked(conditions, name, rows)), tuple(judge.estimate(name, molecules.valid).tolist()),
            judge.metadata.get(f"{name} mean absolute error", "an unknown amount"),
        )
        for name in judge.networks
    ]  # fmt: skip
    n_new = sum(not found for found in judge.known.contain(molecules.unique))
    return MoleculeReport(molecules, n_new, len(judge.known), tuple(properties))


def _short(figure: Estimate) -> str:
    return f"{figure.value:.2f}" + ("" if math.isnan(figure.low) else f" [{figure.low:.2f}, {figure.high:.2f}]")


def _asked(conditions: Mapping[str, Tensor], name: str, rows: Tensor) -> list[float]:
    given = conditions.get(name)
    values: list[float] = (torch.full(rows.shape, torch.nan) if given is None else given.cpu())[rows].tolist()
    return values


def correlation_estimate(a: Tensor, b: Tensor) -> Estimate:
    """Pearson's correlation of pairs (n,), with the interval of Fisher's transform; none for fewer than 4."""
    pairs = torch.stack((a.double(), b.double()))
    value = float(torch.corrcoef(pairs)[0, 1]) if pairs.shape[1] > 1 else float("nan")
    if pairs.shape[1] < 4 or not abs(value) < 1:
        return Estimate(value)
    half = 1.959964 / (pairs.shape[1] - 3) ** 0.5
    centre = torch.atanh(torch.tensor(value, dtype=torch.float64))
    return Estimate(value, float(torch.tanh(centre - half)), float(torch.tanh(centre + half)))
