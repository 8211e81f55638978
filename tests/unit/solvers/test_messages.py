"""Error messages of solvers: one line each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bfn
from bfn import solvers
from bfn.core.errors import UserError
from bfn.exact.joint import JointMixture
from bfn.solvers import Anchor, Calibration
from bfn.solvers.multistep import Multistep
from planned import make_table

NUMBERS, CLASSES = bfn.ContinuousFlow(sigma_1=0.05), bfn.DiscreteFlow(n_classes=5, beta_1=3.0)


def multistep(**settings: Any) -> Callable[[], object]:
    return lambda: Multistep("mine", "", ("continuous",), **{"order": 2, **settings})


def along(path: Any, times: str = "separate", **settings: Any) -> Callable[[], object]:
    model = JointMixture(
        {"x": ([[0.0, 0.3]], [[0.2, 0.1]])}, {"kind": [[[0.7, 0.3]]]}, times=times,
        flows={"x": bfn.ContinuousFlow(0.05), "kind": bfn.DiscreteFlow(2, 6.0)},
    )  # fmt: skip
    return lambda: model.sample(2, path=path, **settings)


def calibration(*anchors: Anchor) -> Callable[[], object]:
    return lambda: Calibration(anchors)


def at_zero(name: str) -> Callable[[], object]:
    return lambda: make_table(NUMBERS, name, grid=torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))


def initial(flow: bfn.Flow, mean: torch.Tensor) -> Callable[[], object]:
    model = bfn.BFN(lambda mu, t: mu, flow, "data", (3,))
    return lambda: model.sample(2, nfe=4, initial=bfn.InitialGaussian(mean, 1.0))


MESSAGES: list[tuple[Callable[[], object], str]] = [
    # names
    (lambda: solvers.get("fastode"), "solver='fastode': expected one of"),
    (lambda: solvers.get("fast-od"), "did you mean 'fast-ode'"),
    (lambda: solvers.get(3), "solver=3: expected a name, such as 'auto', a solver or a table"),  # type: ignore[arg-type]
    (lambda: solvers.get("bfn-solver++2", "discrete"), "'bfn-solver++2' is for continuous data: for"),
    (lambda: solvers.get("multistep:3"), "solver='multistep:3': expected multistep:ORDER:COORDINATE"),
    (lambda: solvers.get("multistep:3:s:twice"), "solver='multistep:3:s:twice': expected multistep:ORDER:COORDINATE"),
    # multistep solvers
    (multistep(order=0), "order=0: expected one of 1, 2, 3, 4"),
    (multistep(order=5), "order=5: expected one of 1, 2, 3, 4"),
    (multistep(coordinate="z"), "coordinate='z': expected one of s, log s, asinh"),
    (multistep(integral="z"), "integral='z': expected one of exact, shortcut"),
    (multistep(interpolates="z"), "interpolates='z': expected one of data, noise"),
    (multistep(g=-1.0), "g=-1.0, quiet=0: expected"),
    (multistep(g=float("nan")), "g=nan"),
    (multistep(quiet=-1), "quiet=-1: expected"),
    (multistep(g=1.0, interpolates="noise"), "g=1 with interpolates='noise'"),
    (multistep(g=1.0, extrapolates_end=True), "g=1 with extrapolates_end=True"),
    (multistep(corrector=True, interpolates="noise"), "corrector=True with interpolates='noise'"),
    # grids
    *[(at_zero(name), "t_start=1e-3") for name in ("unipc2", "deis2", "sa-solver", "multistep:2:log s:corrector")],
    (at_zero("euler-ode"), "the drift of 'euler-ode' is infinite there; start at 1e-3"),
    (lambda: make_table(CLASSES, "bfn-solver2-singlestep", grid=[0.5]), "expected at least 2 times"),
    (lambda: make_table(CLASSES, "bfn-solver2-singlestep", 5), "nfe=5: this solver makes 2 calls a step"),
    # facts of the model
    (lambda: make_table(CLASSES, "bfn-optimal", 4), "no error curve; training stores one, or set"),
    (calibration(), "increasing numbers of calls"),
    (calibration(Anchor(5, 0.0, 2, 1.0), Anchor(5, 0.0, 2, 1.0)), "increasing numbers of calls"),
    (calibration(Anchor(5, -1.0, 2, 1.0)), "g >= 0"),
    (initial(NUMBERS, torch.zeros(2)), "InitialGaussian with a mean of shape (2,): expected (3,)"),
    (along(None, nfe=4, initial=bfn.InitialGaussian(torch.zeros(3), 1.0)), "InitialGaussian: it is for data of one"),
    # paths
    (along("kidn"), "part 'kidn': expected 'together' or parts of x, kind; did you mean 'kind'"),
    (along(["x", "x"]), "expected each part once"),
    (along("kind", nfe=2), "nfe=2: a path of 2 stages needs at least 3 calls"),
    (along("kind", grid=[0.1, 0.5, 1.0]), "give the times of each part"),
    (along({"x": [0.1, 1.0]}), "part 'kind' has 0 times: expected one for each of 2 calls"),
    (along({"x": [0.1, 1.0], "kind": [0.5, 0.4]}), "part 'kind' has times that decrease"),
    (along({"x": [0.1, 1.0], "kind": [0.5, 0.9]}, nfe=3), "nfe=3"),
    (along({"x": [0.1, 1.0], "kind": [0.5, 0.9]}, t_start=0.1), "it has its own; leave them out"),
    (along(lambda t: {"x": t}, nfe=4), "part 'kind' has times that decrease or leave [0, 1]"),
    (along("kind", solver="bfn-solver2-singlestep", nfe=6), "for discrete data"),
    (along("kind", times="together"), "share one time; a path needs JointFlow"),
    (along({"x": [0.1, 1.0], "kind": [0.2, 1.0]}, times="together"), "share one time; a path needs JointFlow"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "fragment"), MESSAGES, ids=[fragment for _, fragment in MESSAGES])
def test_wrong_input_gives_one_line(call: Callable[[], object], fragment: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
