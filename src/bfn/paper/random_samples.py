"""Figures 7 to 9: random samples of the solvers side by side, from the same start."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from bfn import solvers
from bfn.model import Model
from bfn.paper import printed
from bfn.paper.judged_model import JudgedModel
from bfn.paper.measurements import BEYOND
from bfn.paper.report import Options, Section
from bfn.quality import Setting, draw

__all__ = ["samples"]

CALLS: Mapping[str, tuple[int, ...]] = {"images": (10, 50), "text": (10, 100)}
COUNT: Mapping[str, int] = {"images": 30, "text": 4}

Drawn = dict[tuple[str, int], Tensor]
"""Samples by solver and calls."""


def samples(judged: JudgedModel, options: Options) -> Section:
    """A sheet of images a solver and number of calls, or lines of text."""
    model = judged.model
    calls, n = options.nfe or CALLS[model.form], options.n or COUNT[model.form]
    names = dict.fromkeys((*_papers_solvers(model), *(BEYOND[:1] if options.beyond is None else options.beyond)))
    drawn: Drawn = {
        (name, nfe): draw(model, Setting(name, nfe), n, options.seed, n).x for name in names for nfe in calls
    }
    results = {"n": n, "samplers": [{"solver": name, "nfe": nfe} for name, nfe in drawn]}
    note = f"The same start noise for all, each solver on its own grid. Not chosen: the first {n} of the seed."
    if model.form == "text":
        return Section(judged.name, judged.title, "\n".join([note, *_texts(model, drawn)]), results)
    return Section(judged.name, judged.title, note, results, {f"{judged.name}.png": partial(_sheet, model, drawn)})


def _papers_solvers(model: Model) -> tuple[str, ...]:
    """Those of the paper's table that is about this kind of data."""
    tables = [printed.printed_table(name).solvers for name in ("fid-nfe", "sa-nfe")]
    fitting = solvers.names(model.flow.kind)
    return next(names for names in tables if all(name in fitting for name in names))


def _texts(model: Model, drawn: Drawn) -> list[str]:
    lines = []
    for (name, nfe), x in drawn.items():
        lines += ["", f"`{name}`, {nfe} calls", "", "```text", *model.decode(x), "```"]
    return lines


def _sheet(model: Model, drawn: Drawn, path: Path) -> None:
    """A row of sheets for each number of calls."""
    from PIL import Image

    from bfn.viz.pictures import sheet, side_by_side

    rows = []
    for nfe in dict.fromkeys(nfe for _, nfe in drawn):
        here = {name: model.flow.values(x) for (name, at), x in drawn.items() if at == nfe}
        parts = [(name, sheet(values, columns=5).reduce(2)) for name, values in here.items()]
        rows.append(side_by_side(parts, f"{nfe} calls"))
    page = Image.new(rows[0].mode, (max(row.width for row in rows), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        page.paste(row, (0, top))
        top += row.height
    page.save(path, format="PNG", optimize=True)
