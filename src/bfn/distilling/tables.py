"""What a map to the end is sampled by: one call at the start; each further one after noising its prediction again.

Where to noise to is chosen so that the teacher finds samples as likely as the ends of its own paths: by the energy
distance between the errors that it makes on each, at several noise levels. The energy distance of the data themselves
is a blunt tool in many dimensions; these few numbers tell what is coarse and what is fine in a sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bfn.conditions import ConditionTensors, rows_of
from bfn.eval_mode import evaluating
from bfn.flows import Flow
from bfn.losses import squared_error
from bfn.model import Model
from bfn.progress import Shown, over
from bfn.sampling import sample
from bfn.seeds import derived_generator
from bfn.solvers import Table
from bfn.solvers.renoising import RENOISING

__all__ = ["choose_tables", "energy_distance", "error_profile", "renoising_table"]

LOOKS = 4
"""Noise levels, of the times that there are to choose from, at which samples are looked at."""
NEGLIGIBLE = 0.03
"""Share of the error at t = 0: what is well below it is texture that nobody sees."""
BATCH = 100
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
def error_profile(model: Model, x: Tensor, conditions: ConditionTensors, times: Sequence[float], *, seed: int = 0) -> Tensor:
    """How hard each sample is for a model, at each time: (n, times), log of the error beside that at t = 0.

    The same noise for every x of that number, so that two sets of samples differ by what they are.
    """
    device, columns = model.device, []
    for number, t in enumerate((0.0, *times)):
        generator, errors = derived_generator(seed, "profile", number), []
        for rows in torch.split(torch.arange(len(x)), BATCH):
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
