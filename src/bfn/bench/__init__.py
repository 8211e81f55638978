"""The bench: what sampling, training and their parts cost, as ratios measured within one run with all taking turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from bfn.bench.contest import Figure
from bfn.bench.growth import growth, memory, written
from bfn.bench.parts_cost import kernel, training
from bfn.bench.sampling_cost import against, compiled, sampling
from bfn.bench.shared_work import processes
from bfn.errors import UserError, did_you_mean

__all__ = ["PARTS", "Figure", "run"]

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
