"""Samples in files: batches of samples, and numbered files of many."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import torch

from bfn._utils.files import atomic, atomic_write, write_arrays
from bfn._utils.pieces import ALONE, Pieces, Processes, block_generator, digest, write_pieces
from bfn._utils.progress import Progress, Shown
from bfn.core.codec import codec_for
from bfn.core.errors import UserError
from bfn.core.model import BFN
from bfn.core.samples import Samples
from bfn.core.sampling import BoundRequest, Request, SampleOptions, SolverLike, Step
from bfn.core.solver import Plan
from bfn.storage.models import identify

FILE_NUMBERS = 1 << 22
"""Approximate number of values in a file of many samples."""
MOST_BATCHES = 64
"""Maximum number of batches in a file: what a killed process loses."""
LEAST_FILES = 64
"""Minimum number of files if samples do not fit in one, so that many processes can share the work."""
SHEET = 64
"""Number of images on the sheet that shows the first of many."""


def sample_to(
    model: BFN,
    folder: Path | str,
    n: int,
    solver: SolverLike | Request = "auto",
    nfe: int | None = None,
    *,
    batch: int = 256,
    per_file: int | None = None,
    seed: int = 0,
    autocast: torch.dtype | None = None,
    processes: Processes = ALONE,
    progress: Shown = False,
    **options: Unpack[SampleOptions],
) -> tuple[list[Path], Plan]:
    """Draw samples into numbered files, in constant memory.

    The files are ``samples-000000.npz`` and so on, .txt for text; for images also a sheet of the first samples. They
    hold the samples of ``model.sample(n, ..., batch=batch, seed=seed)``. If the call is interrupted, the same call
    continues, with any number of processes.

    Args:
        model: the model.
        folder: directory of the files.
        n: number of samples.
        solver, nfe, options: as for ``bfn.sample``.
        batch: maximum number of states that go through the network together.
        per_file: maximum number of samples in a file; chosen by their size if None.
        seed: seed of the random numbers.
        autocast: type to run the network in.
        processes: the processes that share the work.
        progress: whether to show progress.

    Returns:
        The files, and the plan of the solver.

    Raises:
        UserError: the folder has files of another request.
    """
    if not isinstance(solver, Request):
        solver = Request.from_options(solver, nfe, **options)
    elif nfe is not None or options:
        raise UserError(f"{', '.join(options) or 'nfe'} beside a Request, which has its own: leave it out")
    bound = solver.bind(model, n)
    pieces = pieces_for(bound, folder, batch, per_file)
    request = {
        "model": identify(model), "request": solver.key(), "table": digest(repr(bound.plan.table)), "seed": seed,
        "batch": batch, "autocast": autocast,
    }  # fmt: skip

    def write(rows: range, path: Path, advance: Callable[[float], None]) -> None:
        def on_step(step: Step) -> None:
            advance(len(step.u) / bound.n_particles / bound.plan.table.nfe)

        samples = draw_batches(bound, rows, batch=batch, seed=seed, autocast=autocast, on_step=on_step)
        if path.suffix == ".txt":
            atomic_write(path, "".join(f"{line}\n" for line in model.codec.lines(samples.x, samples.present)))
            return
        sheet = model.codec.picture(samples.x[:SHEET]) if rows.start == 0 else None
        if sheet is not None:
            with atomic(path.with_name("samples.png")) as temporary:
                sheet.save(temporary, "PNG")
        labels = {} if samples.label is None else {"labels": samples.label}
        write_arrays(path, **model.codec.arrays(samples.x, samples.present), **labels)

    write_pieces(pieces, write, request, processes=processes, progress=progress)
    return pieces.paths, bound.plan


def draw_batches(
    bound: BoundRequest,
    rows: range | None = None,
    *,
    batch: int = 256,
    seed: int = 0,
    autocast: torch.dtype | None = None,
    on_step: Callable[[Step], object] | None = None,
    processes: Processes = ALONE,
    progress: Shown = False,
) -> Samples:
    """Draw samples of a request in batches, each with a generator made from the seed and its number.

    Args:
        bound: the request, for all samples.
        rows: samples to draw by number, from the first one of a batch on; all of them if None.
        batch, seed, autocast, on_step, progress: as for ``bfn.sample``.
        processes: the processes that share the batches. All of them get all samples.
    """
    rows, size = range(bound.n) if rows is None else rows, batch_size(bound, batch)
    drawn: list[Samples] = []
    with Progress(len(rows), "sampling", "sample", progress) as bar:

        def after_step(step: Step) -> None:
            bar.update(len(step.u) * processes.count / bound.n_particles / bound.plan.table.nfe)
            if on_step is not None:
                on_step(step)

        for start in processes.own(rows[::size]):
            part = bound.rows(slice(start, min(rows.stop, start + size)))
            generator = block_generator(seed, start // size, bound.model.device)
            drawn.append(part.draw(generator, on_step=after_step, autocast=autocast))
    return Samples.joined(processes.gather(drawn))


def batch_size(bound: BoundRequest, batch: int) -> int:
    """Return the number of samples in a batch of so many states."""
    return max(1, batch // bound.n_particles)


def pieces_for(bound: BoundRequest, folder: Path | str, batch: int, per_file: int | None = None) -> Pieces:
    """Return the files for the samples of a request. A file holds whole batches; see ``sample_to``."""
    model, n, size = bound.model, bound.n, batch_size(bound, batch)
    if per_file is None:
        numbers = sum(map(math.prod, model.flow.by_part("data_shape", model.data_shape).values()))
        per_file = min(FILE_NUMBERS // max(1, numbers), MOST_BATCHES * size)
        per_file = min(per_file, n // LEAST_FILES) if n > per_file else per_file
    suffix = ".txt" if codec_for(model.info, model.flow, model.data_shape).form == "text" else ".npz"
    return Pieces(Path(folder), n, max(1, per_file // size) * size, suffix)
