"""``bfn impute``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from bfn.cli.common import FILE, AsJson, Device, ModelName, Seed, check_positive, load, tell

__all__ = ["impute"]


def impute(
    model: ModelName,
    data: Annotated[Positional[Path], FILE],
    out: Annotated[Path | None, FILE] = None,
    draws: int | None = None,
    expected: bool = False,
    nfe: int | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Fill the missing cells of a table: each is drawn given the other cells of its row, which stay as they are.

    With --draws, so many tables, filled-1.csv, filled-2.csv, ...: what differs between them is what is not known.

    Example: bfn impute runs/people people.csv --out filled.csv

    Example: bfn impute runs/people people.csv --expected

    Example: bfn impute runs/people people.parquet --draws 20 --out filled.parquet

    Args:
        data: a .csv, .tsv or .parquet file with the columns of the table that the model was trained on.
        out: .csv, .tsv or .parquet; the data's name with -filled if left out.
        draws: how many tables to write, each drawn anew.
        expected: fill by what errs least instead: numbers by their mean, over 20 draws or as many as --draws says, all
            else by the most probable level.
        nfe: network calls to spend on each row, 20 if left out.
    """
    from bfn.data import read_table
    from bfn.tables import TableSynthesizer
    from bfn.tables.row_files import check_row_file, write_rows

    check_positive(draws=draws, nfe=nfe)
    target = check_row_file(out or data.with_name(f"{data.name.partition('.')[0]}-filled{data.suffix}"))
    synthesizer = TableSynthesizer.of(load(model, device), model)
    table = read_table(data)
    gaps = int(table.reindex(columns=list(synthesizer.columns.names)).isna().sum().sum())
    calls: dict[str, Any] = {} if nfe is None else {"nfe": nfe}
    files = []
    several = None if expected else draws
    for draw in range(several or 1):
        wish: dict[str, Any] = {"expected": True, "draws": draws} if expected else {}
        filled = synthesizer.impute(table, seed=seed + draw, **calls, **wish)
        path = target if several is None else target.with_name(f"{target.stem}-{draw + 1}{target.suffix}")
        write_rows(path, [filled], filled)
        files.append(str(path))
    values = {"model": model, "data": str(data), "rows": len(table), "cells": gaps, "seed": seed, "files": files}
    drawn = ", by what errs least" if expected else f", {draws} times" if draws else ""
    tell(values, [f"{gaps} missing cells in {len(table)} rows filled{drawn}; written to {', '.join(files)}"], json)
