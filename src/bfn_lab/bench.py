"""Ratios of times that were measured in turn within one run: machines are shared and noisy, ratios much less so."""

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
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor, nn

from bfn import networks
from bfn.core.control import Batch, Control, Stage
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.joint import JointFlow, JointHead
from bfn.core.model import BFN
from bfn.core.sampling import Request
from bfn.core.table import BoundRow
from bfn.storage.sample_files import sample_to


@dataclass(frozen=True)
class Figure:
    """A measured ratio: the median over rounds, with the 95 % interval of the median by order statistics.

    Of fewer than 6 rounds it is their whole range, which is less sure.

    part: of the bench. name: what is compared. unit: where it is not a ratio. goal: what it is to be at least or at
    most, None where it is only told. note: what a reader should know.
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
        """Whether it is what it is to be."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.side == "at most" else self.value >= self.goal

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}

    def line(self) -> str:
        """For people."""
        goal = "" if self.goal is None else f"{self.side} {self.goal:g}: {'met' if self.met else 'MISSED'}"
        interval = f"[{self.low:.3g}, {self.high:.3g}]" if self.rounds > 1 else ""
        note = f"  ({self.note})" if self.note else ""
        return f"  {self.name:58}{self.value:9.3f} {self.unit:4}{interval:17}{goal}{note}".rstrip()


def contest(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = process_time
) -> dict[str, list[float]]:
    """Seconds of each in each round, after one that does not count; every other round goes the other way round.

    The clock is that of the process's own work: what others on the machine do counts only by what they take of caches
    and memory.
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
    """The figure of the times ``over`` those ``under``, round by round, times a factor."""
    ratios = sorted(factor * a / b for a, b in zip(over, under, strict=True))
    n = len(ratios)
    k = int(stats.binom.ppf(0.025, n, 0.5))  # the interval is from the k-th to the k-th last
    return Figure(part, name, median(ratios), ratios[max(k - 1, 0)], ratios[min(n - k, n - 1)], n, **about)


TWICE = 1.7


def processes(quick: bool) -> Iterator[Figure]:
    """The speed of two processes over that of one, each with one core, by the wall clock: take an idle machine."""
    n, rounds = (512, 1) if quick else (1024, 3)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for round_ in range(rounds):
        for count in (1, 2) if round_ % 2 else (2, 1):
            seconds[count].append(_seconds(count, n))
    ratios = sorted(one / two for one, two in zip(seconds[1], seconds[2], strict=True))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    name = f"{n:,} digits of 20 calls, two processes over one"
    note = f"{os.cpu_count()} cores, load {busy:.1f} in the end"
    yield Figure("processes", name, median(ratios), ratios[0], ratios[-1], rounds, TWICE, "at least", note=note)


def _seconds(count: int, n: int) -> float:
    """Of drawing alone: not of starting Python, nor of loading the model."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        command = ["-m", "bfn", "--", "sample", "digits", "--n", str(n), "--nfe", "20", "--batch", "64"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*launch, *command, "--device", "cpu", "--out", folder, "--json"],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
    return float(json.loads(done.stdout)["seconds"])


MOST_GIGABYTES, FLAT = 2.0, 1.1


def growth(quick: bool) -> Iterator[Figure]:
    """Sampling over its network alone as one thing after another grows."""
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
    """The most memory of a process with 50,000 classes, length 64, batch 4; torch alone is a third of a GB."""
    for what in ("loss", "sampling"):
        command = [sys.executable, "-c", f"from bfn_lab.bench import peak; print(peak({what!r}))"]
        found = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        name = f"50,000 classes, length 64, batch 4: {what}"
        yield Figure("memory", name, found, found, found, 1, goal=MOST_GIGABYTES, unit="GB")


def peak(what: str) -> float:
    """The most memory of this process, GB, after one loss with its gradients, or a sample; for a process of its own."""
    import resource

    torch.set_num_threads(1)
    model = text_model(n_classes=50_000)
    if what == "loss":
        model.loss(torch.randint(50_000, (4, 64))).mean().backward()  # type: ignore[no-untyped-call]
    else:
        model.sample(4, nfe=5, seed=0)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def written(quick: bool) -> Iterator[Figure]:
    """The time of a hundred samples and their file where many have been written, over that where few have.

    Each is taken over the time of a hundred samples that are not written, drawn just before: what else the machine does
    changes while so many are written.
    """
    n, few, model = (10_000 if quick else 100_000), 20 if quick else 50, point_model()
    ratios: list[float] = []
    unwritten = start = 0.0
    number = 0

    @dataclass(frozen=True)
    class Clock(Control):
        """A control that changes nothing; it is begun with each batch, which is a file."""

        stage = Stage.NOISE

        def begin(self, batch: Batch) -> Control:
            """Measure the file before this one."""
            nonlocal unwritten, start, number
            now = process_time()
            if unwritten:
                ratios.append((now - start) / unwritten)
            unwritten = 0.0
            if 0 < number <= few or number >= n // 100 - few - 1:
                model.sample(100, "fast-ode", 10, seed=0)
                unwritten = process_time() - now
            number, start = number + 1, process_time()
            return self

    with tempfile.TemporaryDirectory() as folder:
        request = Request("fast-ode", 10, controls=(Clock(),))
        sample_to(model, folder, n, request, batch=100, per_file=100)
    name = f"a sample after {n:,} over one after 100 written"
    yield ratio_of("written", name, ratios[-few:], ratios[:few], goal=FLAT)


BANDWIDTH, TRAINING = 0.6, 0.95


def kernel(quick: bool) -> Iterator[Figure]:
    """A row's bandwidth, each number read and written once, over that of a copy.

    States larger than the caches: below, what counts is the time to start an operation, some microseconds a step.
    """
    for size in (1 << 22,) if quick else (1 << 22, 1 << 24):
        u, copied, out = torch.randn(size), torch.zeros(size), torch.zeros(size)
        predictions = [torch.randn(size) for _ in range(3)]
        for depth, a, offset in (
            (1, 1.0, None),
            (2, 1.0, None),
            (2, 0.9, None),
            (2, 1.0, torch.tensor(-0.3)),
            (3, 0.9, None),
        ):
            row = BoundRow(a, (0.3,) * depth, 0.0, offset)
            seconds = contest(
                {
                    "copy": lambda u=u, copied=copied: copied.copy_(u),  # type: ignore[misc]
                    "row": lambda row=row, u=u, p=predictions, out=out: row(u, p, lambda: u, out),  # type: ignore[misc]
                },
                9 if quick else 21,
            )
            kind = "numbers" if offset is None else "classes"
            name = f"2^{size.bit_length() - 1} of {kind}, {depth} predictions, a = {a:g}"
            yield ratio_of("kernel", name, seconds["copy"], seconds["row"], (2 + depth) / 2,
                           goal=BANDWIDTH, side="at least")  # fmt: skip


def training(quick: bool) -> Iterator[Figure]:
    """A bare loop of forward pass, backward pass and optimiser step over the trainer's step."""
    from bfn.training.fitting import recipe_trainer
    from bfn.training.settings import recipe
    from bfn.training.trainer import OneProcess, Trainer

    for name, batch in (("digits", 64),) if quick else (("digits", 64), ("digits", 256)):
        with tempfile.TemporaryDirectory() as folder:
            settings = recipe(name).override({"threads": 1, "tensorboard": False, "batch": batch})
            trainer = recipe_trainer(settings, Path(folder), OneProcess(torch.device("cpu")), False)
            batch_0 = trainer.objective.batch(0, trainer.rows)

            def plain(trainer: Trainer = trainer) -> None:
                trainer.devices.backward(trainer.objective.next_loss(trainer.module, batch_0))
                trainer.optimiser.step()
                trainer.optimiser.zero_grad(set_to_none=True)

            seconds = contest({"plain": plain, "trainer": trainer.train_step}, 11 if quick else 31)
        yield ratio_of("training", f"recipe {name}, batch {batch}", seconds["plain"], seconds["trainer"],
                       goal=TRAINING, side="at least")  # fmt: skip


AT_BATCH_1, ABOVE = 1.15, 1.02
"""The most that sampling may take over its network alone."""
FASTER = 1.15
"""How much faster a compiled network is to be, at least."""


def bare(model: BFN, batch: int, nfe: int) -> Callable[[], None]:
    """As many calls of the network alone."""
    inputs, t = inputs_of(model, batch)

    @torch.no_grad()
    def calls() -> None:
        for _ in range(nfe):
            model.network(inputs, t)

    return calls


def over_own_calls(network: Any, run: Callable[[], object]) -> float:
    """The time of something over that of the network's calls in it: what slows one slows both."""
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
    """The time of a sampler over that of the network's calls in it, in so many rounds."""
    rounded = [
        over_own_calls(model.network, partial(model.sample, batch, solver, nfe, seed=0)) for _ in range(rounds + 1)
    ]
    return ratio_of(part, name, rounded[1:], [1.0] * rounds, **about)


def sampling(quick: bool) -> Iterator[Figure]:
    """Sampling over its network alone, at several batches."""
    cases = {"text 64 x 27": (text_model(), ("fast-ode", "sde-bfn-solver2", "bfn")),
             "images 3 x 32 x 32": (image_model(), ("fast-ode", "sde-bfn-solver++2", "bfn"))}  # fmt: skip
    for case, (model, solvers) in cases.items():
        for batch, nfe, rounds in ((1, 20, 15), (16, 4, 7), *(() if quick else ((256, 2, 3),))):
            for solver in solvers[:1] if quick or batch > 16 else solvers:
                name = f"{case}, {solver}, batch {batch}"
                goal = AT_BATCH_1 if batch == 1 else ABOVE
                yield over_network("sampling", name, model, solver, batch, nfe, 5 if quick else rounds, goal=goal)
    table = table_model()
    for solver in ("fast-ode",) if quick else ("bfn-solver1", "fast-ode", "fast-sde"):
        name = f"table of 20 columns, {solver}, batch 1024"
        yield over_network("sampling", name, table, solver, 1024, 10, 5 if quick else 9)


def compiled(quick: bool) -> Iterator[Figure]:
    """The same with torch.compile, where there is a compiler: sampling compiled over sampling as it is."""
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
    """Our loop over those of others, with the same network and as many calls: with that network, and without.

    With the network, each is taken over its own calls of it, which differ from run to run by more than the loops do.
    """
    model = image_model()
    for batch, nfe, rounds in ((16, 4, 3),) if quick else ((1, 10, 15), (16, 4, 7)):
        for what, one in (("network", model), ("loop alone", idle(model, batch))):
            runs: dict[str, Callable[[], object]] = {"ours": partial(one.sample, batch, "bfn-solver++2", nfe, seed=0),
                    "a plain loop": _plain(one, batch, nfe), **_diffusers(one, batch, nfe)}  # fmt: skip
            if one is model:
                taken = [
                    {name: over_own_calls(model.network, run) for name, run in runs.items()} for _ in range(rounds)
                ]
                found = {name: [each[name] for each in taken] for name in runs}
            else:
                found = contest(runs, 41)
            for other in [*runs][1:]:
                name = f"{what}, batch {batch}: ours over {other}"
                yield ratio_of("against", name, found["ours"], found[other], goal=1.02 if one is model else None)


@torch.no_grad()
def _plain_loop(model: BFN, batch: int, nfe: int) -> Tensor:
    """BFN-Solver++2 as papers write it: in mu, each coefficient where it is needed."""
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


def _plain(model: BFN, batch: int, nfe: int) -> Callable[[], Tensor]:
    return partial(_plain_loop, model, batch, nfe)


def _diffusers(model: BFN, batch: int, nfe: int) -> dict[str, Callable[[], object]]:
    """The loops of diffusers' schedulers; none where it is not installed."""
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
    """Images of 3 x 32 x 32, by a small U-Net that predicts noise."""
    return BFN(networks.build({"name": "unet", "in_channels": 3}), ContinuousFlow(1e-3), "noise", (3, 32, 32)).eval()


def text_model(length: int = 64, n_classes: int = 27) -> BFN:
    """Sequences of classes, by a small transformer."""
    network = networks.build({"name": "transformer", "n_classes": n_classes})
    return BFN(network, DiscreteFlow(n_classes), "logits", (length,)).eval()


def point_model() -> BFN:
    """Vectors of 16 numbers, by a perceptron: what is cheap to draw, so that all else shows."""
    network = networks.build({"name": "mlp", "in_features": 16, "width": 64, "n_blocks": 2})
    return BFN(network, ContinuousFlow(0.01), "preconditioned", (16,)).eval()


def table_model(width: int = 192) -> BFN:
    """A table of 15 columns of 2 to 40 classes and 5 of numbers, with the network of one vector that tables get."""
    sizes = (2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 24, 32, 40)
    classes = {f"class {i}": DiscreteFlow.with_separation(k) for i, k in enumerate(sizes)}
    numbers = {f"number {i}": ContinuousFlow(0.02) for i in range(5)}
    flow = JointFlow({**classes, **numbers})
    heads = {name: "logits" if name in classes else "preconditioned" for name in flow.parts}
    network = networks.build({"name": "mlp", "in_features": sum(sizes) + len(numbers), "width": width, "n_blocks": 3})
    return BFN(network, flow, JointHead.make(heads, flow, flat=True), {name: () for name in flow.parts}).eval()


def inputs_of(model: BFN, batch: int) -> tuple[Tensor, Tensor]:
    """What the model's network is shown at t = 0.5: its input and times."""
    u = torch.randn(batch, *model.flow.state_shape(model.data_shape), generator=torch.Generator().manual_seed(0))
    level = model.flow.noise_level(0.5, batch, u.ndim - 1, u)
    return model.head.inputs(model.flow, u, level), level.t


def idle(model: BFN, batch: int) -> BFN:
    """The same model with a network whose answer is ready: sampling from it costs the loop and nothing else."""
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
"""By name; each takes whether to be quick, and gives its figures as it has them."""


def run(
    only: Sequence[str] = (),
    quick: bool = False,
    threads: int = 1,
    on_part: Callable[[str, str], object] | None = None,
    on_figure: Callable[[Figure], object] | None = None,
) -> list[Figure]:
    """Measure all parts, or only some. threads: of torch; more of them wait for each other on a busy machine.

    on_part is told a part's name and what it measures, on_figure each figure, as soon as they are there.
    """
    for name in only:
        if name not in PARTS:
            raise UserError(f"only={name!r}: expected some of {', '.join(PARTS)}{did_you_mean(name, PARTS)}")
    before, figures = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for name in only or PARTS:
            if on_part is not None:
                on_part(name, (PARTS[name].__doc__ or "").partition("\n")[0])
            for figure in PARTS[name](quick):
                figures.append(figure)
                if on_figure is not None:
                    on_figure(figure)
    finally:
        torch.set_num_threads(before)
    return figures
