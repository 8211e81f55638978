"""Benchmarks: ratios of times that are measured in turn in one run, since times on shared machines are noisy."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor, nn

from bfn import BFN, ContinuousFlow, DiscreteFlow, JointFlow, UserError, heads, networks, sample_to, solvers
from bfn.training import OneProcess, recipe, recipe_trainer


@dataclass(frozen=True)
class Figure:
    """A measured ratio: the median over rounds, with the 95 % interval of the median by order statistics.

    With fewer than 6 rounds the interval is their whole range, whose coverage is lower.

    Attributes:
        part, name: part of the benchmark, and what is compared.
        value, low, high: the median and its interval.
        rounds: number of rounds.
        goal, side: limit of the value, and on which side of it the value should be; None for no limit.
        unit: unit, for figures that are no ratios.
        note: remark for the reader.
    """

    part: str
    name: str
    value: float
    low: float
    high: float
    rounds: int
    goal: float | None = None
    side: Literal["at most", "at least"] = "at most"
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.side == "at most" else self.value >= self.goal

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "met": self.met}

    def line(self) -> str:
        """Return the figure in one line."""
        goal = "" if self.goal is None else f"{self.side} {self.goal:g}: {'met' if self.met else 'MISSED'}"
        interval = f"[{self.low:.3g}, {self.high:.3g}]" if self.rounds > 1 else ""
        note = f"  ({self.note})" if self.note else ""
        return f"  {self.name:58}{self.value:9.3f} {self.unit:4}{interval:17}{goal}{note}".rstrip()


def contest(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = process_time
) -> dict[str, list[float]]:
    """Return the seconds of each contestant in each round. The first round is discarded, every other one reversed.

    The default clock is the processor time of this process, which other processes influence only by caches and memory.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        names = [*contestants] if round_ % 2 else [*contestants][::-1]
        for name in names:
            start = clock()
            contestants[name]()
            seconds[name].append(clock() - start)
    return {name: taken[1:] for name, taken in seconds.items()}


def ratio_of(part: str, name: str, over: list[float], under: list[float], factor: float = 1.0, **about: Any) -> Figure:
    """Return the figure of the ratio of times, ``over`` to ``under``, round by round, times a factor."""
    ratios = sorted(factor * a / b for a, b in zip(over, under, strict=True))
    n = len(ratios)
    k = int(stats.binom.ppf(0.025, n, 0.5))  # the interval is from the k-th to the k-th last
    return Figure(part, name, median(ratios), ratios[max(k - 1, 0)], ratios[min(n - k, n - 1)], n, **about)


TWICE = 1.7
"""Goal of the speed-up by two processes."""


def processes(quick: bool) -> Iterator[Figure]:
    """Speed of two processes over that of one, each on one core, by the wall clock; needs an idle machine."""
    n, rounds = (512, 1) if quick else (1024, 3)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for round_ in range(rounds):
        for count in (1, 2) if round_ % 2 else (2, 1):
            seconds[count].append(_seconds(count, n))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    name = f"{n:,} digits of 20 calls, two processes over one"
    note = f"{os.cpu_count()} cores, load {busy:.1f} at the end"
    yield ratio_of("processes", name, seconds[1], seconds[2], goal=TWICE, side="at least", note=note)


def _seconds(count: int, n: int) -> float:
    """Return the seconds of sampling, without starting Python and loading the model."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        command = ["-m", "bfn", "--", "sample", "digits", "--n", str(n), "--nfe", "20", "--batch", "64"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        printed = _output([*launch, *command, "--device", "cpu", "--out", folder, "--json"], environment)
    return float(json.loads(printed)["seconds"])


def _output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


MOST_GIGABYTES, FLAT = 2.0, 1.1
"""Goals of the peak memory and of the time of a late file over that of an early one."""

NFE = 10
"""Network calls of the samples that are written."""


def growth(quick: bool) -> Iterator[Figure]:
    """Time of sampling over that of its network as calls, batch, length and classes grow."""
    model, rounds = text_model(), 3 if quick else 9
    for calls in (5, 20) if quick else (5, 20, 100):
        yield over_network("growth", f"calls {calls} (batch 4)", model, "fast-ode", 4, calls, rounds)
    for batch in (1, 16) if quick else (1, 4, 16, 64):
        yield over_network("growth", f"batch {batch} (5 calls)", model, "fast-ode", batch, 5, rounds)
    for length in (16, 64) if quick else (16, 64, 256):
        yield over_network("growth", f"length {length} (batch 4)", text_model(length), "fast-ode", 4, 5, rounds)
    for n_classes in (2, 1000) if quick else (2, 27, 1000, 50_000):
        own = text_model(n_classes=n_classes)
        yield over_network("growth", f"classes {n_classes:,} (batch 4)", own, "fast-ode", 4, 3, rounds)


def memory(quick: bool) -> Iterator[Figure]:
    """Peak memory of a process with 50,000 classes, length 64, batch 4; torch alone needs a third of a GB."""
    for what in ("loss", "sampling"):
        command = [sys.executable, "-c", f"from bfn_lab.bench import peak; print(peak({what!r}))"]
        found = float(_output(command))
        name = f"50,000 classes, length 64, batch 4: {what}"
        yield Figure("memory", name, found, found, found, 1, goal=MOST_GIGABYTES, unit="GB")


def peak(what: str) -> float:
    """Return the peak memory of this process in GB after one loss with gradients, or one sample."""
    import resource

    torch.set_num_threads(1)
    model = text_model(n_classes=50_000)
    if what == "loss":
        torch.autograd.backward(model.loss(torch.randint(50_000, (4, 64))).mean())
    else:
        model.sample(4, nfe=5, seed=0)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def written(quick: bool) -> Iterator[Figure]:
    """Time of a hundred samples and their file after many files, over that after few files.

    Each is divided by the time of a hundred samples that are not written, drawn just before, since the load of the
    machine changes while many files are written.
    """
    n, few, model = (10_000 if quick else 100_000), 20 if quick else 50, point_model()
    ratios: list[float] = []
    unwritten = start = 0.0
    n_calls, own = 0, False

    def before_call(*_: object) -> None:
        """Take the time at the first network call of each file, when the file before it is complete."""
        nonlocal unwritten, start, n_calls, own
        if own:
            return
        number, first = divmod(n_calls, NFE)
        n_calls += 1
        if first:
            return
        now = process_time()
        if unwritten:
            ratios.append((now - start) / unwritten)
        unwritten = 0.0
        if 0 < number <= few or number >= n // 100 - few - 1:
            own = True
            model.sample(100, "fast-ode", NFE, seed=0)
            own, unwritten = False, process_time() - now
        start = process_time()

    assert isinstance(model.network, nn.Module)
    model.network.register_forward_pre_hook(before_call)
    with tempfile.TemporaryDirectory() as folder:
        sample_to(model, folder, n, "fast-ode", NFE, batch=100, per_file=100)
    name = f"a sample after {n:,} over one after 100 written"
    yield ratio_of("written", name, ratios[-few:], ratios[:few], goal=FLAT)


BANDWIDTH, TRAINING = 0.6, 0.95


def kernel(quick: bool) -> Iterator[Figure]:
    """Bandwidth of a row of a solver's table, each number read and written once, over that of a copy.

    States are larger than the caches. For smaller ones, the time to start an operation dominates: microseconds a step.
    """
    for size in (1 << 22,) if quick else (1 << 22, 1 << 24):
        u, copied, out = torch.randn(size), torch.zeros(size), torch.zeros(size)
        predictions = [torch.randn(size) for _ in range(3)]
        for depth, a, discrete in ((1, 1.0, False), (2, 1.0, False), (2, 0.9, False), (2, 1.0, True), (3, 0.9, False)):
            row = _bound_row(a, depth, discrete)
            bound = partial(row, u, predictions[:depth], partial(torch.clone, u), out)
            seconds = contest({"copy": partial(copied.copy_, u), "row": bound}, 9 if quick else 21)
            kind = "classes" if discrete else "numbers"
            name = f"2^{size.bit_length() - 1} of {kind}, {depth} predictions, a = {a:g}"
            yield ratio_of("kernel", name, seconds["copy"], seconds["row"], (2 + depth) / 2,
                           goal=BANDWIDTH, side="at least")  # fmt: skip


def _bound_row(a: float, depth: int, discrete: bool) -> Callable[..., Tensor]:
    """Return a row with ``depth`` predictions, bound to a flow. Rows of discrete data also add a constant."""
    flow = DiscreteFlow(27) if discrete else ContinuousFlow()
    rows = [solvers.Row((k + 1) / 10, a, (0.3,) * (k + 1)) for k in range(depth)]
    return solvers.Table((*rows, solvers.Row(0.9))).bind(flow, torch.zeros(1)).rows[depth - 1]


def training(quick: bool) -> Iterator[Figure]:
    """A bare loop of forward pass, backward pass and optimiser step over the trainer's step."""
    for name, batch in (("digits", 64),) if quick else (("digits", 64), ("digits", 256)):
        with tempfile.TemporaryDirectory() as folder:
            settings = recipe(name).override({"threads": 1, "tensorboard": False, "batch": batch})
            trainer = recipe_trainer(settings, Path(folder), OneProcess(torch.device("cpu")), False)
            first = trainer.objective.batch(0, trainer.rows)

            def plain(trainer: Any = trainer, batch: Any = first) -> None:
                trainer.devices.backward(trainer.objective.next_loss(trainer.module, batch))
                trainer.optimiser.step()
                trainer.optimiser.zero_grad(set_to_none=True)

            seconds = contest({"plain": plain, "trainer": trainer.train_step}, 11 if quick else 31)
        yield ratio_of("training", f"recipe {name}, batch {batch}", seconds["plain"], seconds["trainer"],
                       goal=TRAINING, side="at least")  # fmt: skip


AT_BATCH_1, ABOVE = 1.15, 1.02
"""Maximum time of sampling over that of its network alone, at batch 1 and above."""
FASTER = 1.15
"""Minimum speed-up by a compiled network."""


def bare(model: BFN, batch: int, nfe: int) -> Callable[[], None]:
    """Return a function that makes nfe calls of the network alone."""
    inputs, t = inputs_of(model, batch)

    @torch.no_grad()
    def calls() -> None:
        for _ in range(nfe):
            model.network(inputs, t)

    return calls


def over_own_calls(network: Any, run: Callable[[], object]) -> float:
    """Return the time of a function over that of the network calls in it, which are slowed by the same load."""
    assert isinstance(network, nn.Module)
    before: list[float] = []
    after: list[float] = []
    hooks = (
        network.register_forward_pre_hook(lambda *_: before.append(process_time())),
        network.register_forward_hook(lambda *_: after.append(process_time())),
    )
    try:
        start = process_time()
        run()
        whole = process_time() - start
    finally:
        for hook in hooks:
            hook.remove()
    return whole / (sum(after) - sum(before))


def over_network(
    part: str, name: str, model: BFN, solver: str, batch: int, nfe: int, rounds: int, **about: Any
) -> Figure:
    """Return the figure of the time of a sampler over that of the network calls in it."""
    sample = partial(model.sample, batch, solver, nfe, seed=0)
    ratios = [over_own_calls(model.network, sample) for _ in range(rounds + 1)][1:]
    return ratio_of(part, name, ratios, [1.0] * rounds, **about)


def sampling(quick: bool) -> Iterator[Figure]:
    """Time of sampling over that of its network alone, at several batch sizes."""
    cases = {"text 64 x 27": (text_model(), ("fast-ode", "sde-bfn-solver2", "bfn")),
             "images 3 x 32 x 32": (image_model(), ("fast-ode", "sde-bfn-solver++2", "bfn"))}  # fmt: skip
    for case, (model, names) in cases.items():
        for batch, nfe, rounds in ((1, 20, 15), (16, 4, 7), *(() if quick else ((256, 2, 3),))):
            for solver in names[:1] if quick or batch > 16 else names:
                name = f"{case}, {solver}, batch {batch}"
                goal = AT_BATCH_1 if batch == 1 else ABOVE
                yield over_network("sampling", name, model, solver, batch, nfe, 5 if quick else rounds, goal=goal)
    table = table_model()
    for solver in ("fast-ode",) if quick else ("bfn-solver1", "fast-ode", "fast-sde"):
        name = f"table of 20 columns, {solver}, batch 1024"
        yield over_network("sampling", name, table, solver, 1024, 10, 5 if quick else 9)


def compiled(quick: bool) -> Iterator[Figure]:
    """The same with torch.compile, if there is a compiler, and the speed-up of sampling by it."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return
    for case, model in (("text 64 x 27", text_model()), ("images 3 x 32 x 32", image_model()))[: 1 if quick else 2]:
        faster = copy.deepcopy(model)
        assert isinstance(faster.network, nn.Module)
        faster.network.compile(dynamic=False)
        for batch, nfe, rounds in ((16, 4, 7),) if quick else ((1, 10, 15), (16, 4, 9)):
            seconds = contest(
                {
                    "eager": partial(model.sample, batch, "fast-ode", nfe, seed=0),
                    "compiled": partial(faster.sample, batch, "fast-ode", nfe, seed=0),
                    "bare": bare(faster, batch, nfe),
                },
                rounds,
            )
            name, part = f"{case}, batch {batch}", "compiled"
            yield ratio_of(part, f"{name}: eager over compiled", seconds["eager"], seconds["compiled"],
                           goal=FASTER if batch > 1 else None, side="at least")  # fmt: skip
            yield ratio_of(part, f"{name}: over its compiled network", seconds["compiled"], seconds["bare"],
                           goal=ABOVE if batch > 1 else AT_BATCH_1)  # fmt: skip


def against(quick: bool) -> Iterator[Figure]:
    """Time of our loop over those of others, with the same network and number of calls, and with an idle network.

    With the network, each loop is divided by its own network calls, which vary more from run to run than the loops.
    """
    model = image_model()
    for batch, nfe, rounds in ((16, 4, 3),) if quick else ((1, 10, 15), (16, 4, 7)):
        for what, one in (("network", model), ("loop alone", idle(model, batch))):
            runs: dict[str, Callable[[], object]] = {"ours": partial(one.sample, batch, "bfn-solver++2", nfe, seed=0),
                    "a plain loop": partial(_plain_loop, one, batch, nfe), **_diffusers(one, batch, nfe)}  # fmt: skip
            found: dict[str, list[float]] = {name: [] for name in runs} if one is model else contest(runs, 41)
            for name, run in [*runs.items()] * (rounds if one is model else 0):
                found[name].append(over_own_calls(model.network, run))
            for other in [*runs][1:]:
                name = f"{what}, batch {batch}: ours over {other}"
                yield ratio_of("against", name, found["ours"], found[other], goal=1.02 if one is model else None)


@torch.no_grad()
def _plain_loop(model: BFN, batch: int, nfe: int) -> Tensor:
    """Run BFN-Solver++2 as papers write it: in mu, with each coefficient computed where it is needed."""
    flow = model.flow
    assert isinstance(flow, ContinuousFlow)
    generator = torch.Generator().manual_seed(0)
    times = torch.linspace(1e-4, 1, nfe + 1)
    sigma_1 = torch.tensor(1e-3)

    def gamma_of(t: Tensor) -> Tensor:
        return 1 - torch.pow(sigma_1, 2 * t)

    gamma = gamma_of(times[0])
    mu = torch.randn(batch, *model.data_shape, generator=generator) * (gamma * (1 - gamma)).sqrt()
    before, log_s = None, torch.zeros(())
    for i in range(nfe):
        t, t_next = times[i], times[i + 1]
        gamma, gamma_next = gamma_of(t), gamma_of(t_next)
        eps = model.network(mu, torch.full((batch,), float(t)))
        x_hat = (mu / gamma - ((1 - gamma) / gamma).sqrt() * eps).clamp(-1, 1)
        if i == nfe - 1:
            return x_hat
        log_s_now = (gamma / (1 - gamma)).log() / 2
        h = (gamma_next / (1 - gamma_next)).log() / 2 - log_s_now
        d = x_hat if before is None else x_hat + h / (2 * (log_s_now - log_s)) * (x_hat - before)
        scale = ((gamma_next * (1 - gamma_next)) / (gamma * (1 - gamma))).sqrt()
        mu = scale * mu + (gamma_next - scale * gamma) * d
        before, log_s = x_hat, log_s_now
    return mu


def _diffusers(model: BFN, batch: int, nfe: int) -> dict[str, Callable[[], object]]:
    """Return the loops of the schedulers of diffusers, if it is installed."""
    try:
        from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
    except ImportError:
        return {}

    @torch.no_grad()
    def loop(scheduler: Any) -> None:
        scheduler.set_timesteps(nfe)
        steps: Sequence[Tensor] = scheduler.timesteps
        x = torch.randn(batch, *model.data_shape, generator=torch.Generator().manual_seed(0))
        for t in steps:
            eps = model.network(scheduler.scale_model_input(x, t), (t / 1000).expand(batch).float())
            x = scheduler.step(eps, t, x).prev_sample

    kinds: dict[str, Any] = {"DPMSolverMultistep": DPMSolverMultistepScheduler, "UniPC": UniPCMultistepScheduler}
    return {name: partial(loop, kind()) for name, kind in kinds.items()}


def image_model() -> BFN:
    """Make a model of images of 3 x 32 x 32: a small U-Net that predicts noise."""
    return BFN(networks.build({"name": "unet", "in_channels": 3}), ContinuousFlow(1e-3), "noise", (3, 32, 32)).eval()


def text_model(length: int = 64, n_classes: int = 27) -> BFN:
    """Make a model of sequences of classes: a small transformer."""
    network = networks.build({"name": "transformer", "n_classes": n_classes})
    return BFN(network, DiscreteFlow(n_classes), "logits", (length,)).eval()


def point_model() -> BFN:
    """Make a model of vectors of 16 numbers, a perceptron, whose samples are cheap."""
    network = networks.build({"name": "mlp", "in_features": 16, "width": 64, "n_blocks": 2})
    return BFN(network, ContinuousFlow(0.01), "preconditioned", (16,)).eval()


def table_model(width: int = 192) -> BFN:
    """Make a model of a table with 15 columns of 2 to 40 classes and 5 columns of numbers."""
    sizes = (2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 24, 32, 40)
    classes = {f"class {i}": DiscreteFlow.with_separation(k) for i, k in enumerate(sizes)}
    numbers = {f"number {i}": ContinuousFlow(0.02) for i in range(5)}
    flow = JointFlow({**classes, **numbers})
    predicts = {name: "logits" if name in classes else "preconditioned" for name in flow.parts}
    network = networks.build({"name": "mlp", "in_features": sum(sizes) + len(numbers), "width": width, "n_blocks": 3})
    return BFN(network, flow, heads.JointHead.make(predicts, flow, flat=True), {name: () for name in flow.parts}).eval()


def inputs_of(model: BFN, batch: int) -> tuple[Tensor, Tensor]:
    """Return inputs and times of the network at t = 0.5."""
    u = torch.randn(batch, *model.flow.state_shape(model.data_shape), generator=torch.Generator().manual_seed(0))
    level = model.flow.noise_level(0.5, batch, u.ndim - 1, u)
    return model.head.inputs(model.flow, u, level), level.t


def idle(model: BFN, batch: int) -> BFN:
    """Return the model with a network that returns a constant, so that sampling costs the loop alone."""
    answer = model.network(*inputs_of(model, batch)).detach()
    return BFN(lambda inputs, t: answer, model.flow, model.head, model.data_shape)


PARTS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "sampling": sampling,
    "against": against,
    "kernel": kernel,
    "training": training,
    "growth": growth,
    "memory": memory,
    "written": written,
    "compiled": compiled,
    "processes": processes,
}
"""Parts of the benchmark by name. Each takes whether to be quick, and yields its figures."""


def run(
    only: Sequence[str] = (), quick: bool = False, threads: int = 1, show: Callable[[str], object] = lambda line: None
) -> list[Figure]:
    """Measure all parts, or some of them.

    Args:
        only: names of parts.
        quick: whether to measure fewer cases in fewer rounds.
        threads: number of CPU threads of torch.
        show: called with a line for each part, which says what it measures, and one for each figure.
    """
    for name in only:
        if name not in PARTS:
            hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, PARTS, 1))
            raise UserError(f"only={name!r}: expected some of {', '.join(PARTS)}{hint}")
    before, figures = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for name in only or PARTS:
            what = (PARTS[name].__doc__ or "").partition("\n")[0]
            show(f"{name}: {what}")
            for figure in PARTS[name](quick):
                figures.append(figure)
                show(figure.line())
    finally:
        torch.set_num_threads(before)
    return figures
