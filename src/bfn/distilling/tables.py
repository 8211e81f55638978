"""What a map to the end is sampled by: one call at the start; each further one after noising its prediction again.

Where to noise to is chosen so that samples are distributed as the ends of the teacher's paths are, by the energy
distance, which is 0 for equal distributions only.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bfn.conditions import Conditions
from bfn.flows import Flow
from bfn.model import Model
from bfn.sampling import sample
from bfn.solvers import Table
from bfn.solvers.renoising import RENOISING

__all__ = ["choose_tables", "energy_distance", "renoising_table"]


def renoising_table(flow: Flow, times: Sequence[float]) -> Table:
    """A call at each of these times, the first of them 0, with fresh noise between them."""
    return RENOISING.table(flow, times)


def choose_tables(
    model: Model,
    x: Tensor,
    conditions: Conditions,
    times: Sequence[float],
    most: int,
    *,
    seed: int = 0,
) -> dict[int, Table]:
    """Tables of 1 to ``most`` calls for a model that maps to the end: each adds the best time to those of the last.

    x, conditions: data that samples should be like. times: those to choose from.
    """
    flow, chosen = model.flow, [0.0]
    tables = {1: renoising_table(flow, chosen)}
    for calls in range(2, most + 1):
        trials: list[tuple[float, list[float]]] = []
        for t in (t for t in times if t not in chosen):
            tried = sorted([*chosen, t])
            drawn = sample(model, len(x), renoising_table(flow, tried), condition=conditions, seed=seed).x
            trials.append((energy_distance(flow.values(drawn), flow.values(x)), tried))
        if not trials:
            break
        _, chosen = min(trials)
        tables[calls] = renoising_table(flow, chosen)
    return tables


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2 E||x - y|| - E||x - x'|| - E||y - y'|| of two samples, (n, ...) and (m, ...): 0 for equal distributions."""
    x, y = x.flatten(1).double(), y.flatten(1).double()

    def within(z: Tensor) -> Tensor:
        return torch.cdist(z, z).sum() / (len(z) * (len(z) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y))
