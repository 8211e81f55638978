"""Figures 7 to 9: random samples of the solvers side by side, from the same start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from bfn.paper.cells import BEYOND
from bfn.paper.reports import Options, Section
from bfn.paper.subjects import Subject
from bfn.quality.measuring import Setting, draw

IMAGE_SOLVERS = ("bfn", "sde-bfn-solver++2", "bfn-solver++1", "bfn-solver++2")
TEXT_SOLVERS = ("bfn", "sde-bfn-solver2", "bfn-solver1", "bfn-solver2")
IMAGE_ETA = 1e-3
"""Where the paper's solvers start for the sheets: their own default."""


def samples(subject: Subject, options: Options) -> Section:
    """A sheet of images a solver and number of calls, or lines of text."""
    continuous = subject.model.flow.kind == "continuous"
    calls = options.nfe or ((10, 50) if continuous else (10, 100))
    names = dict.fromkeys(
        (*(IMAGE_SOLVERS if continuous else TEXT_SOLVERS), *(BEYOND[:1] if options.beyond is None else options.beyond))
    )
    n = options.n or (30 if continuous else 4)
    clip = (-1.0, 1.0) if continuous else None
    drawn: dict[tuple[str, int], Tensor] = {}
    for name in names:
        for nfe in calls:
            eta = IMAGE_ETA if "++" in name else None
            setting = Setting(name, nfe, t_start=eta)
            drawn[name, nfe], _ = draw(subject.model, setting, n, options.seed, n, subject.n_labels, clip)
    results = {"n": n, "samplers": [{"solver": name, "nfe": nfe} for name, nfe in drawn]}
    if not continuous:
        return Section(subject.name, subject.title, "\n".join(_texts(drawn, subject.alphabet or "")), results)
    note = f"The same start noise for all; the paper's solvers start at eta {IMAGE_ETA:g}. Not chosen: the first {n}."
    return Section(subject.name, subject.title, note, results, {f"{subject.name}.png": partial(_sheet, drawn, calls)})


def _texts(drawn: dict[tuple[str, int], Tensor], alphabet: str) -> list[str]:
    from bfn.viz.pictures import lines

    out = ["The same start noise for all; not chosen: the first of the seed."]
    for (name, nfe), x in drawn.items():
        out += ["", f"`{name}`, {nfe} calls", "", "```text", *lines(x, alphabet), "```"]
    return out


def _sheet(drawn: dict[tuple[str, int], Tensor], calls: Sequence[int], path: Path) -> None:
    """A row of sheets for each number of calls."""
    from PIL import Image

    from bfn.viz.pictures import sheet, side_by_side

    rows = []
    for nfe in calls:
        parts = [(name, sheet(x, columns=5).reduce(2)) for (name, at), x in drawn.items() if at == nfe]
        rows.append(side_by_side(parts, f"{nfe} calls"))
    page = Image.new(rows[0].mode, (max(row.width for row in rows), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        page.paste(row, (0, top))
        top += row.height
    page.save(path, format="PNG", optimize=True)
