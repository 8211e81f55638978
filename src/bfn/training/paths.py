"""Paths of a teacher: the states that a sampler without noise passes, and the data that it ends at.

They are drawn in chunks, each by a seed of its own, and kept as files: a run that was stopped finds them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn._utils.pieces import derived_generator, evaluating
from bfn._utils.progress import Progress, Shown, over
from bfn.core.conditions import ConditionTensors, conditions_for, dropped, rows_of
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.losses import squared_error
from bfn.core.model import Model
from bfn.core.sampling import Step, sample
from bfn.core.solver import plan
from bfn.core.table import Table
from bfn.solvers.diffusion import RENOISING
from bfn.storage.models import read_weights, write_weights

CHUNK = 1000
"""Paths a file."""
BATCH = 100
"""Paths that go through the network at a time."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths of n starts through the same times.

    times: (calls,) float64. u: the states at them, (calls, n, *state_shape), in half precision: beside the noise that
    states hold the rounding is nothing, and there are many. x: where they end, (n, *data_shape). conditions: theirs.
    """

    times: Tensor
    u: Tensor
    x: Tensor
    conditions: ConditionTensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice) -> Paths:
        """Some of the paths."""
        return Paths(self.times, self.u[:, rows], self.x[rows], rows_of(self.conditions, rows))

    def at(self, node: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The times and states of some paths at some of their nodes, where they end, and their conditions."""
        return self.times[node], self.u[node, index].float(), self.x[index], rows_of(self.conditions, index)


def coupled_noise(flow: Flow, u: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The eps with which the state is u = s w(x) + sqrt(kappa) eps: noise that leads to x, instead of any."""
    s = flow.noise_level(t, len(u), u.ndim - 1, like=u).s
    return (u - flow.noised(x, s, torch.zeros_like(u))) / flow.noise_scale(u)


def draw_paths(
    model: Model,
    n: int,
    sampling: Mapping[str, Any],
    *,
    seed: int = 0,
    dropout: float = 0.0,
    folder: Path | None = None,
    progress: Shown = False,
) -> Paths:
    """n paths of a model. sampling: settings of ``model.sample``, of a solver without noise.

    dropout: share of the paths that are drawn without a condition. folder: where chunks are kept and looked for.
    """
    planned = plan(
        model, **{key: sampling[key] for key in ("solver", "nfe", "grid", "t_start", "g") if key in sampling}
    )
    if planned.table.stochastic:
        raise UserError(
            f"a teacher with noise ({planned}): a map is learned from paths without; take one such as fast-ode"
        )
    if not all(row.commit for row in planned.table.rows):
        raise UserError(f"a teacher with stages ({planned}): a map is learned from the states of a path; take fast-ode")
    chunks = []
    with Progress(n, "paths", "path", progress) as bar:
        for number in range(-(-n // CHUNK)):
            count = min(CHUNK, n - number * CHUNK)
            file = None if folder is None else folder / f"paths-{number:04d}.safetensors"
            chunk = read_weights(file) if file is not None and file.is_file() else {}
            if len(chunk.get("x", ())) != count:
                chunk = _chunk(model, count, sampling, derived_generator(seed, "paths", number), dropout, bar)
                if file is not None:
                    write_weights(file, chunk)
            bar.update(count - (bar.n - number * CHUNK))
            chunks.append(chunk)
    u = torch.cat([chunk.pop("u").half() for chunk in chunks], 1)
    joined = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return Paths(torch.tensor(planned.table.times, dtype=torch.float64), u, joined.pop("x"), joined)


def _chunk(
    model: Model, n: int, sampling: Mapping[str, Any], generator: torch.Generator, dropout: float, bar: Any
) -> dict[str, Tensor]:
    """Some paths as named tensors."""
    conditions = conditions_for(model, n, generator=generator)
    conditions = dropped(conditions, dropout, torch.rand(n, max(1, len(conditions)), generator=generator))
    states, ends, exists = [], [], []
    for first in range(0, n, BATCH):
        rows = slice(first, min(n, first + BATCH))
        passed: list[Tensor] = []

        def keep(step: Step, passed: list[Tensor] = passed) -> None:
            passed.append(step.u.half().cpu())

        seed = int(torch.randint(2**62, (), generator=generator))
        count = rows.stop - rows.start
        out = sample(model, count, condition=rows_of(conditions, rows), seed=seed, on_step=keep, **sampling)
        states.append(torch.stack(passed))
        ends.append(out.x.cpu().float() if model.flow.has_range else out.x.cpu())
        if out.present is not None:
            exists.append(out.present.cpu())
        bar.update(count)
    if exists:
        conditions["present"] = torch.cat(exists)
    return {**conditions, "u": torch.cat(states, 1), "x": torch.cat(ends)}


LOOKS = 4
"""Noise levels, of the times that there are to choose from, at which samples are looked at."""
NEGLIGIBLE = 0.03
"""Share of the error at t = 0: what is well below it is texture that nobody sees."""
BATCH_TABLES = 100
"""Samples that go through the network at a time."""


def renoising_table(flow: Flow, times: Sequence[float]) -> Table:
    """A call at each of these times, the first of them 0, with fresh noise between them."""
    return RENOISING.table(flow, times)


def choose_tables(
    model: Model,
    teacher: Model,
    x: Tensor,
    conditions: ConditionTensors,
    times: Sequence[float],
    most: int,
    *,
    seed: int = 0,
    progress: Shown = False,
) -> dict[int, Table]:
    """Tables of 1 to ``most`` calls for a model that maps to the end: each adds the best time to those of the last.

    teacher: who looks at the samples. x, conditions: what they should be like. times: those to choose from.
    """
    flow, chosen = model.flow, [0.0]
    asked = dict(conditions)
    present = asked.pop("present", None)
    tables = {1: renoising_table(flow, chosen)}
    if not times:
        return tables
    looked_at = times[:: -(-len(times) // LOOKS)]
    ends = error_profile(teacher, x, conditions, looked_at, seed=seed)
    for calls in range(2, most + 1):
        trials: list[tuple[float, list[float]]] = []
        others = [t for t in times if t not in chosen]
        for t in over(others, f"choosing the times of {calls} calls", "trial", progress):
            tried = sorted([*chosen, t])
            table = renoising_table(flow, tried)
            drawn = sample(model, len(x), table, condition=asked, present=present, seed=seed).x
            profile = error_profile(teacher, drawn, conditions, looked_at, seed=seed)
            trials.append((energy_distance(profile, ends), tried))
        if not trials:
            break
        _, chosen = min(trials)
        tables[calls] = renoising_table(flow, chosen)
    return tables


@torch.no_grad()
def error_profile(
    model: Model, x: Tensor, conditions: ConditionTensors, times: Sequence[float], *, seed: int = 0
) -> Tensor:
    """How hard each sample is for a model, at each time: (n, times), log of the error beside that at t = 0.

    The same noise for every x of that number, so that two sets of samples differ by what they are.
    """
    device, columns = model.device, []
    for number, t in enumerate((0.0, *times)):
        generator, errors = derived_generator(seed, "profile", number), []
        for rows in torch.split(torch.arange(len(x)), BATCH_TABLES):
            shape = (len(rows), *model.flow.state_shape(model.data_shape))
            eps = torch.randn(shape, generator=generator, dtype=model.dtype).to(device)
            there = {name: value.to(device) for name, value in rows_of(conditions, rows).items()}
            at = torch.full((len(rows),), t, dtype=torch.float64, device=device)
            with evaluating(model):
                errors.append(squared_error(model, x[rows].to(device), at, None, there, eps).double().cpu())
        columns.append(torch.cat(errors))
    first, *others = columns
    return (torch.stack(others, 1) / first.mean() + NEGLIGIBLE).log()


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2 E||x - y|| - E||x - x'|| - E||y - y'|| of two samples, (n, ...) and (m, ...): 0 for equal distributions."""
    x, y = x.flatten(1).double(), y.flatten(1).double()

    def within(z: Tensor) -> Tensor:
        return torch.cdist(z, z).sum() / (len(z) * (len(z) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y))
