"""The paper's figures are what its source prints, and are about solvers that exist."""

import pytest

from bfn import solvers
from bfn_lab import report as printed


@pytest.mark.parametrize(
    ("table", "solver", "at", "value"),
    [
        ("fid-nfe", "bfn", {"nfe": 10}, 253.23),
        ("fid-nfe", "bfn-solver++2", {"nfe": 10}, 55.87),
        ("fid-nfe", "sde-bfn-solver++2", {"nfe": 1000}, 10.86),
        ("sa-nfe", "bfn", {"nfe": 10}, 66.27),
        ("sa-nfe", "sde-bfn-solver2", {"nfe": 50}, 86.82),
        ("sa-nfe", "bfn-solver2", {"nfe": 10}, 82.27),
        ("cs-ablation", "sde-bfn-solver1", {"nfe": 20}, 80.86),
        ("cs-trajectories", "bfn", {"step": 0.005}, 0.087),
        ("eta-continuous", "bfn-solver++1", {"nfe": 50, "eta": 0.0001}, 111.14),
        ("eta-continuous", "sde-bfn-solver++2", {"nfe": 500, "eta": 0.00001}, 27.39),
        ("eta-discrete", "sde-bfn-solver2", {"nfe": 200, "eta": 0.0001}, 86.74),
        ("efficiency-bpc", "bfn", {"nfe": 25}, 1.52),
        ("efficiency-sa", "bfn-solver2", {"nfe": 50}, 85.0),
    ],
)
def test_figures_as_printed(table: str, solver: str, at: dict, value: float) -> None:
    assert printed.printed_table(table).value(solver, **at) == value


def test_every_solver_is_one_of_ours_and_fits_the_data() -> None:
    for table in printed.tables().values():
        kind = "continuous" if table.data == "CIFAR-10" else "discrete"
        for name in table.solvers:
            assert kind in solvers.get(name).kinds


def test_both_tables_of_the_original_sampler_agree() -> None:
    """Tables 3 and 6 print the same row."""
    rows = [
        [f.value for f in printed.printed_table(name).figures if f.solver == "bfn"]
        for name in ("sa-nfe", "cs-ablation")
    ]
    assert rows[0] == rows[1]


def test_remarks_stand_at_the_figures_they_are_about() -> None:
    doubted = {(f.solver, f.column.nfe) for f in printed.printed_table("fid-nfe").figures if f.remarks}
    assert doubted == {("bfn-solver++1", 50), ("bfn-solver++2", 50)}
    assert next(f.remarks for f in printed.printed_table("efficiency-bpc").figures if f.solver == "bfn-solver2")


def test_the_remark_on_eta_is_what_the_tables_show() -> None:
    """The best of the eta table at 50 calls is worse than the tuned table's figure."""
    for solver in ("bfn-solver++1", "bfn-solver++2"):
        figures = printed.printed_table("eta-continuous").figures
        best = min(f.value for f in figures if f.solver == solver and f.column.nfe == 50)
        tuned = printed.printed_table("fid-nfe").value(solver, nfe=50)
        assert tuned is not None
        assert tuned < best


def test_a_figure_that_is_not_printed_is_none() -> None:
    assert printed.printed_table("fid-nfe").value("bfn", nfe=11) is None
