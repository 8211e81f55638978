"""Rows of a table for ``bfn sample``: written as they are drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfn.cli.common import shown, tell
from bfn.processes import Processes
from bfn.progress import Progress

if TYPE_CHECKING:
    from bfn.model import BFN

__all__ = ["sample_table"]


def sample_table(
    name: str, model: BFN, n: int, out: Path, given: tuple[str, ...], rules: tuple[str, ...], json: bool, **wishes: Any
) -> None:
    """Draw rows into a file, and tell how conditions were met. wishes: of ``draw_rows``; None for its own default."""
    from bfn.tables.row_files import check_row_file, write_rows
    from bfn.tables.row_sampling import RowRequest, draw_rows

    assert model.info.columns is not None
    path = check_row_file(out if out.suffix else out / "samples.csv")
    request = RowRequest.read(model.info.columns, given, rules)
    settings = {key: value for key, value in wishes.items() if value is not None}
    report = request.report(settings.get("particles"))
    processes = Processes.here()
    start = time.perf_counter()
    with Progress(n, "sampling", "row", shown(json)) as bar:

        def counted() -> Iterator[Any]:
            for rows in draw_rows(model, n, request, report, processes=processes, **settings):
                bar.update(len(rows))
                yield rows

        if processes.main:
            write_rows(path, counted(), request.example)
        else:
            all(True for _ in counted())  # its share is drawn; the first process has all rows and writes them
    seconds = time.perf_counter() - start
    values = {
        "model": name, "n": n, "seed": wishes["seed"], "seconds": round(seconds, 3), "files": [str(path)],
        "conditions": report.asdict(),
    }  # fmt: skip
    rate = f"{n / max(seconds, 1e-9):.0f} rows a second"
    line = f"{n} rows of {name}: {seconds:.2f} s, {rate}, seed {wishes['seed']}; written to {path}"
    tell(values, [*report.lines(), line], json)
