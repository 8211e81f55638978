"""What measurements say about the paper's ordering, by their intervals alone.

Two solvers differ where their 95 % intervals do not overlap; everything else is "not told apart", never a tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from bfn.estimate import Estimate
from bfn.paper.printed import Column, PrintedTable
from bfn.quality import Measure

__all__ = ["Outcome", "Pair", "compare_pairs", "judge_pair", "nearest", "summary"]

Outcome = Literal["agrees", "opposite", "not told apart"]
Values = Mapping[tuple[str, Column], Estimate]
"""What was measured, by solver and column."""

RESOLUTION = {"FID": 0.03, "SA, %": 0.008}
"""Printed figures nearer than this share of themselves are not taken for an ordering.

The paper gives no intervals. 1,000 texts of 256 symbols hold some 45,000 words, whose share of correct ones is known to
about half a point; FIDs of 10,000 images scatter by a percent or two.
"""


@dataclass(frozen=True)
class Pair:
    """Whether the paper's order of two solvers is found. better, worse: as printed; at: our column."""

    better: str
    worse: str
    at: Column
    printed_at: Column
    printed: tuple[float, float]
    measured: tuple[Estimate, Estimate]
    outcome: Outcome
    reason: str = ""

    def sentence(self, measure: Measure) -> str:
        """One line."""
        ours = " against ".join(measure.show(value) for value in self.measured)
        paper = f"{self.printed[0]:g} against {self.printed[1]:g}"
        told = {
            "agrees": f"`{self.better}` is better than `{self.worse}`",
            "opposite": f"`{self.better}` is worse than `{self.worse}`",
            "not told apart": f"`{self.better}` and `{self.worse}` are not told apart",
        }[self.outcome]
        return f"{told}: {ours} (paper: {paper})" + (f"; {self.reason}" if self.reason else "")


def compare_pairs(
    table: PrintedTable, measured: Values, measure: Measure, ceiling: Mapping[str, Estimate] | None = None
) -> list[Pair]:
    """The paper's order of every pair of its solvers, found or not, at each of our columns.

    At fewer calls than the paper measured, its fewest are what is compared with. ceiling: by solver, what the model
    gives with very many calls: a pair that has reached it can no longer differ.
    """
    found = []
    for column in dict.fromkeys(column for _, column in measured):
        printed_at = nearest(table, column)
        if printed_at is None:
            continue
        printed = {f.solver: f.value for f in table.figures if f.column == printed_at and f.solver is not None}
        here = [solver for solver in printed if (solver, column) in measured]
        for pair in combinations(here, 2):
            first, second = (printed[solver] for solver in pair)
            if abs(first - second) <= RESOLUTION.get(table.measure, 0.0) * max(first, second):
                continue
            better, worse = sorted(pair, key=printed.__getitem__, reverse=table.better == "higher")
            values = measured[better, column], measured[worse, column]
            outcome = judge_pair(*values, measure)
            reason = _reason(outcome, (better, worse), values, ceiling or {})
            numbers = printed[better], printed[worse]
            found.append(Pair(better, worse, column, printed_at, numbers, values, outcome, reason))
    return found


def judge_pair(better: Estimate, worse: Estimate, measure: Measure) -> Outcome:
    """Whether the first is better than the second, by their intervals."""
    if better.overlaps(worse):
        return "not told apart"
    return "agrees" if (better.value < worse.value) == (measure.better == "low") else "opposite"


def nearest(table: PrintedTable, column: Column) -> Column | None:
    """The printed column that one of ours is compared with: the same calls, or the nearest that is printed.

    None if the table has no such eta, or if it is about step sizes.
    """
    if column.nfe is None:
        return None
    nfe = column.nfe
    fitting = [c for c in table.columns if c.nfe is not None and c.eta == column.eta]
    return min(fitting, key=lambda c: abs((c.nfe or 0) - nfe), default=None)


def _reason(outcome: Outcome, pair: Sequence[str], values: Sequence[Estimate], ceiling: Mapping[str, Estimate]) -> str:
    """Why two solvers are not told apart, where the ceiling explains it."""
    limits = [ceiling.get(solver) for solver in pair]
    at_ceiling = all(limit is not None and limit.overlaps(value) for limit, value in zip(limits, values, strict=True))
    explained = outcome == "not told apart" and at_ceiling
    return "both have reached what the model gives at very many calls" if explained else ""


def summary(found: Sequence[Pair], measure: Measure) -> list[str]:
    """Markdown: at each column the count of pairs, then every pair that does not agree, with its reason if known."""
    lines = []
    for column in dict.fromkeys(v.at for v in found):
        here = [v for v in found if v.at == column]
        counts = {outcome: sum(v.outcome == outcome for v in here) for outcome in ("agrees", "opposite")}
        rest = len(here) - sum(counts.values())
        as_printed = "" if here[0].printed_at == column else f" (compared with the paper's {here[0].printed_at.nfe})"
        eta = f", eta {column.eta:g}" if column.eta is not None else ""
        lines.append(
            f"- **{column.nfe} calls{eta}**{as_printed}: of {len(here)} pairs that the paper orders {counts['agrees']} "
            f"agree, {counts['opposite']} are the other way round, {rest} are not told apart."
        )
        lines += [f"  - {v.sentence(measure)}" for v in here if v.outcome != "agrees" and not v.reason]
        for reason in dict.fromkeys(v.reason for v in here if v.reason):
            pairs = ", ".join(f"`{v.better}` and `{v.worse}`" for v in here if v.reason == reason)
            lines.append(f"  - {pairs}: {reason}, so that they can no longer differ.")
    return lines
