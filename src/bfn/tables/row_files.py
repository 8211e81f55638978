"""Rows on disk, piece by piece: .csv, .tsv or .parquet, whole or not there at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bfn.data.optional_packages import require
from bfn.errors import UserError, did_you_mean
from bfn.files import atomic

__all__ = ["check_row_file", "write_rows"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}
KINDS = (*SEPARATORS, ".parquet")


def check_row_file(path: Path | str) -> Path:
    """The path of a file that rows can be written to."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        hint = did_you_mean(path.suffix, KINDS)
        raise UserError(f"{path}: rows are written to files ending with {', '.join(KINDS)}{hint}")
    if path.is_dir():
        raise UserError(f"{path}: is a directory: expected a file")
    return path


def write_rows(path: Path | str, pieces: Iterable[Any], example: Any) -> int:
    """Write DataFrames one after another, and return the number of rows; memory holds one piece at a time.

    example: rows without a missing cell, whose types all pieces have: a piece of a column may be all missing.
    """
    path = check_row_file(path)
    count = 0
    with atomic(path) as temporary:
        if path.suffix.lower() == ".parquet":
            arrow, parquet = require("pyarrow", "to write Parquet"), require("pyarrow.parquet", "to write Parquet")
            schema = arrow.Schema.from_pandas(example, preserve_index=False)
            with parquet.ParquetWriter(temporary, schema) as writer:
                for piece in pieces:
                    writer.write_table(arrow.Table.from_pandas(piece, schema=schema, preserve_index=False))
                    count += len(piece)
        else:
            separator = SEPARATORS[path.suffix.lower()]
            with temporary.open("w", encoding="utf-8", newline="") as file:
                example.head(0).to_csv(file, sep=separator, index=False, lineterminator="\n")
                for piece in pieces:
                    piece.to_csv(file, sep=separator, index=False, header=False, lineterminator="\n")
                    count += len(piece)
    return count
