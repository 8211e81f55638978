"""What the loop costs beside the network: ratios measured within one run, since machines are shared and noisy.

The unit is one elementwise pass over the state (``u * a``), timed in turn with the thing measured.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import torch

from bfn import networks
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.model import BFN
from bfn.sampling import make_table
from bfn.solvers.table import BoundRow

CASES: dict[str, tuple[Flow, str, tuple[int, ...], dict[str, networks.JSON]]] = {
    "text, 64 x 256 x 27": (
        DiscreteFlow(n_classes=27),
        "logits",
        (256,),
        {"name": "transformer", "n_classes": 27},
    ),
    "images, 64 x 3 x 32 x 32": (
        ContinuousFlow(sigma_1=1e-3),
        "noise",
        (3, 32, 32),
        {"name": "unet", "in_channels": 3},
    ),
}
SOLVERS = {
    "discrete": ("bfn-solver2", "sde-bfn-solver2", "bfn"),
    "continuous": ("bfn-solver++2", "sde-bfn-solver++2", "bfn"),
}


@dataclass(frozen=True)
class LoopCost:
    """Costs a step, in elementwise passes over the state.

    row: applying the row, which is all that a solver adds. noise: drawing it, for SDE solvers.
    interface: what the flow and head do for any sampler: the network's input, its output as a prediction.
    outside: everything outside the network, measured as a whole. share: that, of the time with a small real network.
    """

    case: str
    solver: str
    row: float
    noise: float
    interface: float
    outside: float
    share: float


def seconds(action: Callable[[], object], unit: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of an action and of a unit of work, timed alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for kept, function in zip(times, (action, unit), strict=True):
            start = perf_counter()
            function()
            kept.append(perf_counter() - start)
    return median(times[0]), median(times[1])


def loop_cost(case: str, solver: str, batch: int = 64, nfe: int = 20, repeats: int = 15) -> LoopCost:
    """Time a sampler on an idle network and on a real one."""
    flow, predicts, data_shape, config = CASES[case]
    network = networks.build(config)
    u = torch.randn(batch, *flow.state_shape(data_shape))
    answer = torch.randn_like(u)
    idle = BFN(lambda inputs, t: answer, flow, predicts, data_shape)
    real = BFN(network, flow, predicts, data_shape)
    level = flow.level(0.5, batch, u.ndim - 1, u)
    row = make_table(flow, solver, nfe).rows[nfe // 2]
    step = BoundRow.bind(row, flow, u)
    history = [answer] * len(row.b)

    def passes(action: Callable[[], object], per: int = 1, count: int = repeats) -> float:
        taken, unit = seconds(action, lambda: [u * 0.5 for _ in range(10)], count)
        return taken / per / (unit / 10)

    interface = passes(lambda: [idle.output(u, level).mean for _ in range(10)], per=10)
    apply = passes(lambda: [step(u, history, lambda: answer) for _ in range(10)], per=10)
    noise = passes(lambda: torch.randn_like(u)) if row.c else 0.0
    outside = passes(lambda: idle.sample(batch, solver, nfe), per=nfe)
    whole = passes(lambda: real.sample(batch, solver, 2), per=2, count=3)
    return LoopCost(case, solver, apply, noise, interface, outside, outside / whole)


def run(threads: int = 1) -> list[dict[str, float | str]]:
    """All cases; prints a table as it goes. One thread: more of them wait for each other on a busy machine."""
    torch.set_num_threads(threads)
    print("passes over the state a step, and the share of the time that is spent outside a small network")
    print(f"{'case':26}{'solver':20}{'row':>7}{'noise':>7}{'interface':>11}{'outside':>9}{'share':>8}")
    results = []
    for case, (flow, *_) in CASES.items():
        for solver in SOLVERS[flow.kind]:
            cost = loop_cost(case, solver)
            print(
                f"{case:26}{solver:20}{cost.row:7.1f}{cost.noise:7.1f}{cost.interface:11.1f}{cost.outside:9.1f}"
                f"{cost.share:8.1%}"
            )
            results.append(asdict(cost))
    return results


if __name__ == "__main__":
    run()
