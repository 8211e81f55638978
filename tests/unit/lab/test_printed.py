"""The paper's figures are what its source prints, and are about solvers that exist."""

import pytest

from bfn import solvers
from bfn_lab import report as printed


@pytest.mark.parametrize(
    ("table", "solver", "at", "value"),
    [
        ("fid-nfe", "bfn", {"nfe": 10}, 253.23),
        ("fid-nfe", "bfn", {"nfe": 11}, None),
        ("fid-nfe", "sde-bfn-solver++2", {"nfe": 1000}, 10.86),
        ("sa-nfe", "bfn-solver2", {"nfe": 10}, 82.27),
        ("cs-ablation", "sde-bfn-solver1", {"nfe": 20}, 80.86),
        ("cs-trajectories", "bfn", {"step": 0.005}, 0.087),
        ("eta-continuous", "sde-bfn-solver++2", {"nfe": 500, "eta": 0.00001}, 27.39),
        ("eta-discrete", "sde-bfn-solver2", {"nfe": 200, "eta": 0.0001}, 86.74),
        ("efficiency-bpc", "bfn", {"nfe": 25}, 1.52),
        ("efficiency-sa", "bfn-solver2", {"nfe": 50}, 85.0),
    ],
)
def test_figures_as_printed(table: str, solver: str, at: dict, value: float | None) -> None:
    assert printed.printed_table(table).value(solver, **at) == value


def test_every_solver_is_one_of_ours_and_fits_the_data() -> None:
    for table in printed.tables().values():
        kind = "continuous" if table.data == "CIFAR-10" else "discrete"
        for name in table.solvers:
            assert kind in solvers.get(name).kinds


def test_the_remark_on_eta_is_what_the_tables_show() -> None:
    """The best of the eta table at 50 calls is worse than the tuned table's figure."""
    for solver in ("bfn-solver++1", "bfn-solver++2"):
        figures = printed.printed_table("eta-continuous").figures
        best = min(f.value for f in figures if f.solver == solver and f.column.nfe == 50)
        tuned = printed.printed_table("fid-nfe").value(solver, nfe=50)
        assert tuned is not None
        assert tuned < best
