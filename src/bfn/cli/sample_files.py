"""The files that ``bfn sample`` writes: pictures, lines, arrays, tables, by what the samples are."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.model import BFN

__all__ = ["write_files"]


def write_files(path: Path, model: BFN, x: Any, label: Tensor | None, present: Any) -> list[Path]:
    """Samples in files of that name: text as .txt, images as .png and .npz, numbers and parts as .npz, tables as .csv.

    Numbers are in the units of the data that the model was trained on, but those of images, which are in [-1, 1].
    """
    from bfn.files import atomic_write, write_arrays
    from bfn.viz import write_samples

    form = model.form
    files = [write_samples(path, model, x, present=present)] if form in ("text", "images") else []
    if form == "text":
        return files
    if model.info.columns is not None:
        atomic_write(path.with_suffix(".csv"), model.decode(x).to_csv(index=False))
        return [path.with_suffix(".csv")]
    decoded = {"x": x} if form == "images" else model.decode(x, present) if form == "parts" else {"x": model.decode(x)}
    beside = {} if label is None else {"labels": label}
    if present is not None:
        masks = present if isinstance(present, Mapping) else {"": present}
        beside |= {f"present {name}".strip(): mask for name, mask in masks.items()}
    files.append(write_arrays(path.with_suffix(".npz"), **decoded, **beside))
    # Padding of text is no part of it; that of numbers would look like data in a table.
    in_table = present is None or (
        form == "parts" and all(isinstance(decoded[name], list) or bool(mask.all()) for name, mask in present.items())
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
