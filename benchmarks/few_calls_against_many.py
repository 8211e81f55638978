"""The default at 5 and 10 calls against the original sampler and the paper's solvers at 20 to 200, on bundled models.

And the tables tuned to each model against the default without them, over several seeds.

    python benchmarks/few_calls_against_many.py --out docs/results/beyond.md

The seed took part in no choice. What is measured is kept in the store that ``bfn compare`` uses, so that a run that was
stopped goes on where it was; on two cores all of it takes about two hours. The report says for each target whether it
is met, and whether the 95 % intervals tell the two apart.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import bfn
from bfn._utils.estimate import mean_estimate
from bfn._utils.files import atomic_write
from bfn.quality.comparison import Comparison, compare, markdown_table
from bfn.quality.judge import Measure
from bfn.quality.judge_choice import judge_for
from bfn.quality.comparison import Record, Setting, default_store

SEED = 101
TUNED_SEEDS, TUNED_N = 4, 1000
"""Seeds, and samples of each, that tuned tables are measured with."""
OURS = (("auto", 5), ("fast-sde", 5), ("auto", 10))
"""``fast-sde`` is the default without the model's tuned table."""


@dataclass(frozen=True)
class Case:
    """A bundled model. paper: its samplers with their eta, at each of ``calls``. measures: keys of those to show."""

    model: str
    n: int
    paper: tuple[tuple[str, float | None], ...]
    measures: tuple[str, ...]
    calls: tuple[int, ...] = (20, 50, 200)

    @property
    def settings(self) -> list[Setting]:
        """All rows of its table."""
        theirs = [Setting(solver, nfe, eta) for nfe in self.calls for solver, eta in self.paper]
        return [*(Setting(solver, nfe) for solver, nfe in OURS), *theirs]


MAIN = ("frechet", "spelling", "ngram_divergence")
"""Measures that targets are set for."""

SHARED = ("frechet", "asked_class", "near_copies")
DIGITS = ("frechet", "recognised", "asked_class", "class_entropy", "near_copies")
TEXT = ("spelling", "ngram_divergence", "word_divergence", "ngram_entropy")
CASES = (
    Case("text8-plain", 100, (("bfn", None), ("bfn-solver2", 1e-3), ("sde-bfn-solver2", 1e-3)), TEXT),
    Case("mnist", 1000, (("bfn", None), ("sde-bfn-solver++2", 1e-3)), DIGITS),
    Case("mnist-binary", 1000, (("bfn", None), ("sde-bfn-solver2", 1e-3)), DIGITS),
    Case("digits", 1000, (("bfn", None), ("bfn-solver++2", 1e-3), ("sde-bfn-solver++2", 1e-3)), SHARED),
)


def best(records: Sequence[Record], of: Measure, real: float) -> Record:
    """The best of them by one measure."""
    return min(records, key=lambda record: of.loss(record.measures[of.key].value, real))


def verdict(ours: Record, theirs: Record, of: Measure, real: float) -> str:
    """One sentence on one target."""
    mine, other = ours.measures[of.key], theirs.measures[of.key]
    met = of.loss(mine.value, real) <= of.loss(other.value, real)
    told = "; the intervals overlap" if mine.overlaps(other) else ", beyond the intervals"
    return (
        f"{of.label}: {of.show(mine)} of `{ours.setting.name}` at {ours.setting.nfe} calls against {of.show(other)} of "
        f"`{theirs.setting.name}` at {theirs.setting.nfe}: **{'better' if met else 'missed'}**{told}."
    )


def section(case: Case, comparison: Comparison) -> list[str]:
    """Verdicts and table of one model."""
    shown = [of for key in case.measures for of in comparison.measures if of.key == key]
    real = {of.key: comparison.real[of.key] for of in shown}
    rows = {(r.setting.name, r.setting.nfe): r for r in comparison.records[: len(OURS)]}
    theirs = comparison.records[len(OURS) :]
    at_20 = [r for r in theirs if r.setting.nfe == 20]
    lines = ["", f"## {case.model}, {case.n} samples", ""]
    for of in [of for of in shown if of.key in MAIN]:
        value = real[of.key].value
        lines.append(f"- 5 calls against 20. {verdict(rows['auto', 5], best(at_20, of, value), of, value)}")
        lines.append(f"- 10 calls against up to 200. {verdict(rows['auto', 10], best(theirs, of, value), of, value)}")
    return [*lines, "", *rows_of(comparison, shown)]


def rows_of(comparison: Comparison, shown: Sequence[Measure]) -> list[str]:
    """All records, measures across."""
    header = ["sampler", "calls", *(of.label for of in shown)]
    cells = [
        [r.setting.sampler, f"{r.setting.nfe}", *(of.show(r.measures[of.key]) for of in shown)]
        for r in comparison.records
    ]
    cells.append(["real data", "", *(of.show(comparison.real[of.key]) for of in shown)])
    return markdown_table(header, cells)


def tuned_section(case: Case, comparison: Comparison, calls: int) -> list[str]:
    """Verdicts and table of one tuned table against the default without it."""
    shown = [of for key in case.measures for of in comparison.measures if of.key == key]
    tuned, untuned = comparison.records
    lines = ["", f"### The table of {case.model} for {calls} calls, {len(tuned.seeds)} seeds of {tuned.n} samples", ""]
    for of in [of for of in shown if of.key in MAIN]:
        gains = [a[of.key].value - b[of.key].value for a, b in zip(tuned.each, untuned.each, strict=True)]
        difference = of.show(mean_estimate(gains))
        told = verdict(tuned, untuned, of, comparison.real[of.key].value)
        lines.append(f"- {told} Difference from the same starts: {difference}.")
    return [*lines, "", *rows_of(comparison, shown)]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[case.model for case in CASES])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "# The default at 5 and 10 calls against the paper at more",
        "",
        "`auto` (`fast-sde` is the same without the model's tuned table) against the original sampler and the paper's "
        "solvers at 20 to 200 calls. Made by `python benchmarks/few_calls_against_many.py`: seed "
        f"{SEED}, which took part in no choice; the same starts for all rows of a model; 95 % intervals; torch "
        f"{torch.__version__}. Measures depend on the number of samples: compare within a table, and with what real "
        "data of that number get.",
    ]
    for case in CASES:
        if case.model not in options.models:
            continue
        model = bfn.load(case.model)
        comparison = compare(
            model, case.settings, judge_for(model, n=case.n), case.n, name=case.model, store=default_store(),
            seed=SEED, progress=True,
        )  # fmt: skip
        lines += section(case, comparison)
        for calls in sorted(model.info.tables):
            settings = [Setting("auto", calls), Setting("fast-sde", calls)]
            comparison = compare(
                model, settings, judge_for(model, n=TUNED_N), TUNED_N, name=case.model, store=default_store(),
                seed=SEED + 1, repeats=TUNED_SEEDS, progress=True,
            )  # fmt: skip
            lines += tuned_section(case, comparison, calls)
    print("\n".join(lines))
    if options.out:
        atomic_write(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
