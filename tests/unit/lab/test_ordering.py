"""Statements come from intervals alone: what does not overlap differs, everything else is not told apart."""

import pytest

from bfn._utils.estimate import Estimate
from bfn.quality.judge import Measure
from bfn_lab import report as printed
from bfn_lab.quality_tables import compare_pairs, judge_pair, nearest, summary
from bfn_lab.report import Column

SPELLING = Measure("spelling", "spelling accuracy", "high", "%", 100, 1)
DISTANCE = Measure("frechet", "Frechet distance", "low")


def about(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half)


@pytest.mark.parametrize(
    ("better", "worse", "measure", "outcome"),
    [
        (about(0.5), about(0.4), SPELLING, "agrees"),
        (about(0.4), about(0.5), SPELLING, "opposite"),
        (about(0.4), about(0.5), DISTANCE, "agrees"),
        (about(0.5), about(0.4), DISTANCE, "opposite"),
        (about(0.4, 0.05), about(0.5, 0.05), SPELLING, "not told apart"),
    ],
)
def test_a_pair_differs_where_its_intervals_do_not_meet(better, worse, measure, outcome) -> None:
    assert judge_pair(better, worse, measure) == outcome


def test_the_papers_order_is_looked_for_at_every_column() -> None:
    table = printed.printed_table("sa-nfe")
    values = {("bfn", 10): 0.36, ("bfn-solver1", 10): 0.42, ("bfn-solver2", 10): 0.40, ("auto", 10): 0.51,
              ("bfn", 5): 0.30, ("bfn-solver2", 5): 0.305}  # fmt: skip
    cells = {(name, Column(nfe)): about(value) for (name, nfe), value in values.items()}
    found = {(v.better, v.worse, v.at.nfe): v for v in compare_pairs(table, cells, SPELLING)}
    outcomes = {key: v.outcome for key, v in found.items()}
    assert outcomes == {
        ("bfn-solver1", "bfn", 10): "agrees",
        ("bfn-solver2", "bfn", 10): "agrees",
        ("bfn-solver2", "bfn-solver1", 10): "not told apart",
        ("bfn-solver2", "bfn", 5): "not told apart",
    }
    # The paper has nothing below 10 calls: its 10 are what 5 are compared with, and the report says so.
    assert found["bfn-solver2", "bfn", 5].printed == (82.27, 66.27)
    lines = summary(list(found.values()), SPELLING)
    assert "| 5 | 10 | 1 | 0 | 0 | 1 |" in lines
    assert sum(line.endswith("| not distinguishable |") for line in lines if "`" in line) == 2


def test_figures_too_near_in_the_paper_are_no_order() -> None:
    """86.74 and 86.50 at 200 calls are within what 1,000 texts can tell."""
    cells = {("bfn", Column(200)): about(0.4), ("sde-bfn-solver2", Column(200)): about(0.6)}
    assert compare_pairs(printed.printed_table("sa-nfe"), cells, SPELLING) == []


def test_the_ceiling_is_given_as_the_reason() -> None:
    cells = {("bfn", Column(100)): about(0.44), ("bfn-solver1", Column(100)): about(0.445)}
    table = printed.printed_table("sa-nfe")
    at_ceiling = compare_pairs(table, cells, SPELLING, {"bfn": about(0.45), "bfn-solver1": about(0.45)})
    below = compare_pairs(table, cells, SPELLING, {"bfn": about(0.55), "bfn-solver1": about(0.55)})
    assert at_ceiling[0].reason == "both at the limit"
    assert below[0].reason == ""
    for found, result in ((at_ceiling, "not distinguishable, both at the limit"), (below, "not distinguishable")):
        (line,) = [line for line in summary(found, SPELLING) if line.startswith("| 100 | `bfn`")]
        assert line.endswith(f"| {result} |")


def test_columns_are_matched_by_eta_and_calls() -> None:
    table = printed.printed_table("eta-continuous")
    assert nearest(table, Column(10, 0.01)) == Column(50, 0.01)
    assert nearest(table, Column(400, 0.001)) == Column(500, 0.001)
    assert nearest(table, Column(10, 0.05)) is None
    assert nearest(printed.printed_table("cs-trajectories"), Column(step=0.1)) is None
