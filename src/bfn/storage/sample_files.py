"""Samples in files: pictures, lines, arrays, tables, by what they are; many of them in numbered files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bfn._utils.files import atomic_write, write_arrays
from bfn._utils.pieces import ALONE, Pieces, Processes, digest, write_pieces
from bfn._utils.progress import Shown
from bfn.core.model import BFN
from bfn.core.sampling import block_size, sample_in_batches, undisturbed
from bfn.core.solver import Plan, plan
from bfn.quality.measurements import identify
from bfn.viz.pictures import write_samples

FILE_NUMBERS = 1 << 22
"""Numbers in a file of many samples, about."""
MOST_BLOCKS = 64
"""Batches in it: what a kill loses of a process's work."""
LEAST_FILES = 64
"""Files of so many samples that one is not enough: that many processes have something to do."""
SHEET = 64
"""Images that are shown of many."""


def pieces_for(model: BFN, folder: Path | str, n: int, block: int, per_file: int | None = None) -> Pieces:
    """The files that n samples drawn in such blocks go to; per_file: in each, at most; by their size if None."""
    numbers = sum(map(math.prod, model.flow.by_part("data_shape", model.data_shape).values()))
    size = min(FILE_NUMBERS // max(1, numbers), MOST_BLOCKS * block) if per_file is None else per_file
    if per_file is None and n > size:
        size = min(size, n // LEAST_FILES)
    return Pieces(Path(folder), n, max(1, size // block) * block, ".txt" if model.form == "text" else ".npz")


def sample_to(
    model: BFN,
    folder: Path | str,
    n: int,
    solver: Any = "auto",
    nfe: int | None = None,
    *,
    batch: int = 256,
    per_file: int | None = None,
    seed: int = 0,
    given: Callable[[range], Mapping[str, Any]] | None = None,
    request: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
    progress: Shown = False,
    **settings: Any,
) -> tuple[list[Path], Plan]:
    """Draw any number of samples into numbered files as they are drawn, in constant memory; the files, and the plan.

    ``samples-000000.npz`` and so on, or .txt of text; of images also a sheet of the first few. They are the samples of
    :func:`bfn.core.sampling.sample_in_batches` with the same seed and batch, which has the settings. What was
    stopped or killed goes on when it is asked for again, with any number of processes.

    per_file: samples in a file; by their size if None. given: what is asked for of samples of these numbers, where that
    differs: ``label`` and the like. request: plain values that say what ``given`` gives.
    """
    block = block_size(batch, settings.get("particles"))
    pieces = pieces_for(model, folder, n, block, per_file)
    planning: dict[str, Any] = {key: settings.get(key) for key in ("grid", "t_start", "g")}
    planned = plan(model, solver, nfe, **planning, plain=undisturbed(**settings))
    asked = {
        "model": identify(model), "table": digest(repr(planned.table)), "seed": seed, "batch": batch,
        **{name: digest(value) if isinstance(value, Tensor) else repr(value) for name, value in settings.items()},
        **(request or {}),
    }  # fmt: skip

    def write(rows: range, path: Path, advance: Callable[[float], None]) -> None:
        drawn = sample_in_batches(
            model, len(rows), solver, nfe, batch=batch, seed=seed, first=rows.start, **settings,
            **(given(rows) if given else {}), on_step=lambda step: advance(len(step.u) / planned.table.nfe / each),
        )  # fmt: skip
        if path.suffix == ".txt":
            write_samples(path, model, drawn.x, present=drawn.present)
            return
        if model.form == "images" and rows.start == 0:
            write_samples(path.with_name("samples.png"), model, drawn.x[:SHEET])
        write_arrays(path, **_arrays(model, drawn.x, drawn.label, drawn.present))

    each = batch / block
    write_pieces(pieces, write, asked, processes=processes, progress=progress)
    return pieces.paths, planned


def write_files(path: Path, model: BFN, x: Any, label: Tensor | None, present: Any) -> list[Path]:
    """Samples in files of that name: text as .txt, images as .png and .npz, numbers and parts as .npz, tables as .csv.

    Numbers are in the units of the data that the model was trained on, but those of images, which are in [-1, 1].
    """
    form = model.form
    files = [write_samples(path, model, x, present=present)] if form in ("text", "images") else []
    if form == "text":
        return files
    if model.info.columns is not None:
        atomic_write(path.with_suffix(".csv"), model.decode(x).to_csv(index=False))
        return [path.with_suffix(".csv")]
    arrays = _arrays(model, x, label, present)
    files.append(write_arrays(path.with_suffix(".npz"), **arrays))
    decoded = {name: values for name, values in arrays.items() if name != "labels" and not name.startswith("present")}
    # Padding of text is no part of it; that of numbers would look like data in a table.
    in_table = present is None or (
        form == "parts" and all(isinstance(arrays[name], list) or bool(mask.all()) for name, mask in present.items())
    )
    columns = [*_columns(decoded)] if form != "images" and in_table else []
    if columns and all(column is not None for _, column in columns):
        if label is not None:
            classes = model.info.classes
            named = [classes.name(k) if classes else k for k in label.tolist()]
            columns.append(("label", named))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([name for name, _ in columns])
        writer.writerows(zip(*(column for _, column in columns), strict=True))
        atomic_write(path.with_suffix(".csv"), text.getvalue())
        files.append(path.with_suffix(".csv"))
    return files


def _arrays(model: BFN, x: Any, label: Tensor | None, present: Any) -> dict[str, Any]:
    """Samples by the names of their arrays, with their labels, and where they are padded."""
    form = model.form
    decoded = {"x": x} if form == "images" else model.decode(x, present) if form == "parts" else {"x": model.decode(x)}
    beside = {} if label is None else {"labels": label}
    if present is not None:
        masks = present if isinstance(present, Mapping) else {"": present}
        beside |= {f"present {name}".strip(): mask for name, mask in masks.items()}
    return {**decoded, **beside}


def _columns(decoded: Mapping[str, Any]) -> Iterator[tuple[str, list[Any] | None]]:
    """Numbers and texts one a sample by their name, those of vectors numbered; None for what fits in no table."""
    for name, values in decoded.items():
        if isinstance(values, list) or values.ndim == 1:
            yield name, list(values)
        elif values.ndim == 2 and values.shape[1] == 1:
            yield name, values[:, 0].tolist()
        elif values.ndim == 2:
            yield from ((f"{name}{i}", column) for i, column in enumerate(values.T.tolist()))
        else:
            yield name, None
