"""What sampling costs: over its network alone, and beside the loops of others on the same network and calls."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from bfn.bench.cases import idle, image_model, inputs_of, table_model, text_model
from bfn.bench.contest import Figure, contest, ratio_of
from bfn.flows import ContinuousFlow
from bfn.model import BFN

__all__ = ["against", "bare", "compiled", "over_network", "sampling"]

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
