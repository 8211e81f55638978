"""Measure the default at 5 and 10 calls and other solvers at 20 to 200 calls, on bundled models, and print tables.

    python benchmarks/few_calls_against_many.py --models text8-plain

The other solvers are the original sampler and the paper's. Tables that were tuned to a model are compared with the
default without them, over several seeds. Solvers were not tuned with these seeds. Measurements are kept in the store of
``bfn compare``, so that an interrupted run can be continued; all of it takes about two hours on two cores.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import bfn
from bfn.quality import Comparison, Measure, Setting, compare, default_store, judge_for, markdown_table, mean_estimate

SEED = 101
TUNED_SEEDS, TUNED_N = 4, 1000
"""Number of seeds, and of samples of each, for tuned tables."""
OURS = (("auto", 5), ("fast-sde", 5), ("auto", 10))
"""``fast-sde`` is the default without the model's tuned table."""


@dataclass(frozen=True)
class Case:
    """A bundled model: solvers of the paper with their eta, at each of ``calls``, and keys of the measures to show."""

    model: str
    n: int
    paper: tuple[tuple[str, float | None], ...]
    measures: tuple[str, ...]
    calls: tuple[int, ...] = (20, 50, 200)

    @property
    def settings(self) -> list[Setting]:
        """The rows of the table."""
        theirs = [Setting(solver, nfe, eta) for nfe in self.calls for solver, eta in self.paper]
        return [*(Setting(solver, nfe) for solver, nfe in OURS), *theirs]


MAIN = ("frechet", "spelling", "ngram_divergence")
"""Measures whose differences are shown."""

SHARED = ("frechet", "asked_class", "near_copies")
DIGITS = ("frechet", "recognised", "asked_class", "class_entropy", "near_copies")
TEXT = ("spelling", "ngram_divergence", "word_divergence", "ngram_entropy")
CASES = (
    Case("text8-plain", 100, (("bfn", None), ("bfn-solver2", 1e-3), ("sde-bfn-solver2", 1e-3)), TEXT),
    Case("mnist", 1000, (("bfn", None), ("sde-bfn-solver++2", 1e-3)), DIGITS),
    Case("mnist-binary", 1000, (("bfn", None), ("sde-bfn-solver2", 1e-3)), DIGITS),
    Case("digits", 1000, (("bfn", None), ("bfn-solver++2", 1e-3), ("sde-bfn-solver++2", 1e-3)), SHARED),
)


def section(case: Case, comparison: Comparison) -> list[str]:
    """Return the table of one model."""
    shown = [of for key in case.measures for of in comparison.measures if of.key == key]
    return ["", f"## {case.model}, {case.n} samples", "", *rows_of(comparison, shown)]


def rows_of(comparison: Comparison, shown: Sequence[Measure]) -> list[str]:
    """Return the table of all records, measures across."""
    header = ["sampler", "calls", *(of.label for of in shown)]
    cells = [
        [r.setting.sampler, f"{r.setting.nfe}", *(of.show(r.measures[of.key]) for of in shown)]
        for r in comparison.records
    ]
    cells.append(["real data", "", *(of.show(comparison.real[of.key]) for of in shown)])
    return markdown_table(header, cells)


def tuned_section(case: Case, comparison: Comparison, calls: int) -> list[str]:
    """Return the tables of a tuned table and the default without it."""
    shown = [of for key in case.measures for of in comparison.measures if of.key == key]
    tuned, untuned = comparison.records
    lines = ["", f"### The table of {case.model} for {calls} calls, {len(tuned.seeds)} seeds of {tuned.n} samples", ""]
    differences = []
    for of in [of for of in shown if of.key in MAIN]:
        gains = [a[of.key].value - b[of.key].value for a, b in zip(tuned.each, untuned.each, strict=True)]
        differences.append([of.label, of.show(mean_estimate(gains))])
    header = ["measure", "difference from the default without the table"]
    return [*lines, *rows_of(comparison, shown), "", *markdown_table(header, differences)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[case.model for case in CASES])
    options = parser.parse_args()
    lines: list[str] = []
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


if __name__ == "__main__":
    main()
