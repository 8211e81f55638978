"""What the loop costs beside the network: ratios measured within one run, since machines are shared and noisy.

The unit is one elementwise pass over the state (``u * a``), timed in turn with the thing measured.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Tensor

from bfn import networks
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow, NoiseLevel
from bfn.heads import Output
from bfn.joint import JointFlow
from bfn.joint_head import JointHead
from bfn.model import BFN, Model
from bfn.solvers import plan

__all__ = ["LoopCost", "loop_cost", "over_network", "run", "table_model"]


@dataclass(frozen=True)
class LoopCost:
    """Costs a step, in elementwise passes over the state.

    interface: what the flow and head do for any sampler: the network's input, its output as a prediction.
    random: drawing noise and classes, where the solver does.
    loop: all the rest: applying the row, keeping predictions, looking for NaN. This is what the loop adds.
    outside: the sum of them. share: that, of the time with a small real network.
    """

    interface: float
    random: float
    loop: float
    outside: float
    share: float


@dataclass
class _Answered(Model):
    """A model whose answer is ready: sampling from it costs the loop and nothing else."""

    flow: Flow
    data_shape: tuple[int, ...]
    answer: Output

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        return self.answer


def _cases() -> dict[str, tuple[BFN, tuple[str, ...]]]:
    """Models with a small real network, and the solvers to time on each."""
    text = BFN(networks.build({"name": "transformer", "n_classes": 27}), DiscreteFlow(27, 0.75**2), "logits", (256,))
    images = BFN(networks.build({"name": "unet", "in_channels": 3}), ContinuousFlow(1e-3), "noise", (3, 32, 32))
    return {
        "text, 64 x 256 x 27": (text, ("bfn-solver2", "sde-bfn-solver2", "bfn")),
        "images, 64 x 3 x 32 x 32": (images, ("bfn-solver++2", "sde-bfn-solver++2", "bfn")),
    }


def loop_cost(model: BFN, solver: str, batch: int = 64, nfe: int = 20, repeats: int = 25) -> LoopCost:
    """Time a sampler on a model, and on one with its answers ready."""
    flow, data_shape = model.flow, model.data_shape
    u = torch.randn(batch, *flow.state_shape(data_shape))
    answer = torch.randn_like(u)
    idle = BFN(lambda inputs, t: answer, flow, model.head, data_shape)
    level = flow.noise_level(0.5, batch, u.ndim - 1, u)
    table = plan(idle, solver, nfe).table

    def passes(action: Callable[[], object], per: int = 1, count: int = repeats) -> float:
        """The least time of an action and that of a pass, timed in turn: whatever else the machine does only adds."""
        taken, unit = [], []
        for _ in range(count):
            start = perf_counter()
            action()
            between = perf_counter()
            for _ in range(10):
                u * 0.5
            taken.append(between - start)
            unit.append((perf_counter() - between) / 10)
        return min(taken) / per / min(unit)

    output = idle.output(u, level)
    interface = passes(lambda: [idle.output(u, level).mean for _ in range(10)], per=10)
    random = passes(lambda: torch.randn_like(u)) if table.rows[0].c else 0.0
    random += passes(output.draw) if table.draws else 0.0
    loop = passes(lambda: _Answered(flow, data_shape, output).sample(batch, solver, nfe), per=nfe) - random
    outside = interface + random + loop
    whole = passes(lambda: model.sample(batch, solver, 2), per=2, count=3)
    return LoopCost(interface, random, loop, outside, outside / whole)


def table_model(width: int = 192) -> BFN:
    """A table of 15 columns of 2 to 40 classes and 5 of numbers, with the network of one vector that tables get."""
    sizes = (2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 24, 32, 40)
    classes = {f"class {i}": DiscreteFlow.with_separation(k) for i, k in enumerate(sizes)}
    numbers = {f"number {i}": ContinuousFlow(0.02) for i in range(5)}
    flow = JointFlow({**classes, **numbers})
    heads = {name: "logits" if name in classes else "preconditioned" for name in flow.parts}
    network = networks.build({"name": "mlp", "in_features": sum(sizes) + len(numbers), "width": width, "n_blocks": 3})
    return BFN(network, flow, JointHead.make(heads, flow, flat=True), {name: () for name in flow.parts})


@torch.no_grad()
def over_network(model: BFN, solver: str, batch: int, nfe: int = 20, repeats: int = 9) -> float:
    """The time of a sampler over that of the network's calls in it: the median of several runs.

    Both are times of this process within one run, so that whatever slows the machine slows both.
    """
    before: list[float] = []
    after: list[float] = []
    network = model.network
    assert isinstance(network, torch.nn.Module)
    hooks = (
        network.register_forward_pre_hook(lambda *_: before.append(process_time())),
        network.register_forward_hook(lambda *_: after.append(process_time())),
    )
    ratios = []
    try:
        for _ in range(repeats):
            before.clear()
            after.clear()
            start = process_time()
            model.sample(batch, solver, nfe)
            ratios.append((process_time() - start) / (sum(after) - sum(before)))
    finally:
        for hook in hooks:
            hook.remove()
    return median(ratios)


def run(threads: int = 1) -> list[dict[str, float | str]]:
    """All cases; prints a table as it goes. One thread: more of them wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    print("passes over the state a step, and the share of the time that is spent outside a small network")
    print(f"{'case':26}{'solver':20}{'interface':>11}{'random':>8}{'loop':>7}{'outside':>9}{'share':>8}")
    results: list[dict[str, float | str]] = []
    try:
        for case, (model, solvers) in _cases().items():
            for solver in solvers:
                cost = loop_cost(model, solver)
                passes = f"{cost.interface:11.1f}{cost.random:8.1f}{cost.loop:7.1f}{cost.outside:9.1f}"
                print(f"{case:26}{solver:20}{passes}{cost.share:8.1%}")
                results.append({"case": case, "solver": solver, **asdict(cost)})
        print(
            "\nsampling a table of 15 columns of classes and 5 of numbers, over its network alone; 1,024 rows at a time"
        )
        table = table_model()
        for solver in ("bfn-solver1", "fast-ode", "fast-sde"):
            ratio = over_network(table, solver, 1024)
            print(f"{'':26}{solver:20}{ratio:11.3f}")
            results.append({"case": "table", "solver": solver, "over_network": ratio})
        return results
    finally:
        torch.set_num_threads(before)
