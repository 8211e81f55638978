"""Reports of experiments: the printed tables of the paper, plots, options, and the folder that is written."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bfn import UserError, viz
from bfn.quality import Estimate, Measure

FILE = Path(__file__).with_name("printed.json")

# --- the paper's tables -----------------------------------------------------------------------------------------------


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of log y against log x; NaN for a single point or if a y is not above 0.

    >>> round(log_log_slope([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    if len(x) < 2 or min(y) <= 0:
        return math.nan
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


@dataclass(frozen=True)
class Column:
    """Column of a printed table: the number of calls, the truncation eta, or the step size, if it has them."""

    nfe: int | None = None
    eta: float | None = None
    step: float | None = None


@dataclass(frozen=True)
class Remark:
    """A remark on a printed table, on the row of a solver, or, if it has a number of calls, on one figure."""

    text: str
    solver: str | None = None
    nfe: int | None = None


@dataclass(frozen=True)
class PrintedFigure:
    """A printed number. ``solver`` is the name of the method in this library, None if it has none."""

    printed: str
    solver: str | None
    column: Column
    value: float
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrintedTable:
    """A printed table of results. ``better`` is "lower" or "higher"."""

    name: str
    label: str
    place: str
    caption: str
    data: str
    measure: str
    better: str
    n_samples: int | None
    columns: tuple[Column, ...]
    figures: tuple[PrintedFigure, ...]
    remarks: tuple[Remark, ...]

    @property
    def solvers(self) -> tuple[str, ...]:
        """Solvers of the table by their names in this library, in the order of the rows."""
        return tuple(dict.fromkeys(f.solver for f in self.figures if f.solver is not None))

    def value(
        self, solver: str, *, nfe: int | None = None, eta: float | None = None, step: float | None = None
    ) -> float | None:
        """Return the printed number, None if there is none."""
        column = Column(nfe, eta, step)
        return next((f.value for f in self.figures if f.solver == solver and f.column == column), None)


@cache
def tables() -> Mapping[str, PrintedTable]:
    """Read all tables of results, by name."""
    return {entry["name"]: _table(entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))["tables"]}


def printed_table(name: str) -> PrintedTable:
    """Return a table by its name."""
    if name not in tables():
        raise UserError(f"{name!r}: expected a table of the paper, one of {', '.join(tables())}")
    return tables()[name]


def _table(entry: Mapping[str, Any]) -> PrintedTable:
    columns = tuple(Column(**column) for column in entry["columns"])
    remarks = tuple(Remark(**remark) for remark in entry["remarks"])
    figures = []
    for row in entry["rows"]:
        for column, value in zip(columns, row["values"], strict=True):
            key = row["solver"], column.nfe
            own = tuple(remark.text for remark in remarks if remark.nfe and (remark.solver, remark.nfe) == key)
            if value is not None:
                figures.append(PrintedFigure(row["printed"], row["solver"], column, float(value), own))
    plain = ("name", "label", "place", "caption", "data", "measure", "better", "n_samples")
    return PrintedTable(**{key: entry[key] for key in plain}, columns=columns, figures=tuple(figures), remarks=remarks)


# --- plots ------------------------------------------------------------------------------------------------------------

Point = tuple[str | None, Column, Estimate]
"""Label, column and figure."""


def quality_plot(
    curves: Sequence[Point], table: PrintedTable, measure: Measure, ceiling: Mapping[str, Estimate], path: Path
) -> None:
    """Plot quality against calls, or against eta if it varies: measured with intervals (left) and printed (right).

    Args:
        curves: what was measured.
        table: the printed table.
        measure: the measure.
        ceiling: limits of the model by kind of solver, "sde" and "ode".
        path: file to write.
    """
    over_eta = any(column.eta is not None for _, column, _ in curves)
    labels = list(dict.fromkeys(label for label, _, _ in curves if label is not None))
    unit = measure.scale if measure.unit == "%" else 1
    printed = [(f.solver, f.column, Estimate(f.value / unit)) for f in table.figures if f.solver in labels]
    sides = {"measured": curves, f"the paper: {table.measure} on {table.data}": printed}
    names = [f"{label}, {nfe} calls" if over_eta else label for label in labels
             for nfe in dict.fromkeys(column.nfe if over_eta else None for _, column, _ in curves)]  # fmt: skip
    figure = Figure(figsize=(9.6, 4.0), layout="constrained", dpi=100)
    left, right = figure.subplots(1, 2)
    for axes, (title, points) in zip((left, right), sides.items(), strict=True):
        lines: dict[str, dict[float, Estimate]] = {name: {} for name in names}  # of the same colours on both sides
        for label, column, value in points:
            place = column.eta if column.eta is not None else column.nfe
            name = f"{label}, {column.nfe} calls" if over_eta else str(label)
            if place is not None and name in lines:
                lines[name][place] = value.scaled(measure.scale)
        viz.against_calls(lines, "", axes).legend().remove()
        axes.set_title(title, fontsize=10, loc="left")
        if not any(lines.values()):
            continue
        if over_eta:
            axes.set(xscale="log", xlabel="eta, where the grid starts")  # with powers of ten as ticks
        else:
            axes.set_xticks(_spread(sorted({column.nfe for _, column, _ in points if column.nfe is not None})))
        if measure.better == "low":
            axes.set_yscale("log")
    for kind, limit in ceiling.items():
        style = ":" if kind == "sde" else "--"
        left.axhline(limit.value * measure.scale, color="#555555", linewidth=0.9, linestyle=style)
    left.set_ylabel(measure.label + (f", {measure.unit}" if measure.unit else ""))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def lines_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, x: str, y: str, dashed: Sequence[str] = ()
) -> None:
    """Plot named curves on doubly logarithmic axes; the dashed ones are references."""
    axes = viz.on(None, size=(6.4, 4.4))
    for index, (name, points) in enumerate(curves.items()):
        style = "--" if name in dashed else "-"
        axes.plot(*zip(*points, strict=True), style, color=viz.colour(index), marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, fontsize=8)
    viz.save(axes, path)


def _spread(ticks: Sequence[int], ratio: float = 1.2) -> list[int]:
    """Return ticks that do not overlap on a logarithmic axis."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick > ratio * kept[-1]:
            kept.append(tick)
    return kept


# --- reports ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """Options of all experiments. None stands for the default of the experiment.

    Attributes:
        n: number of samples.
        nfe: numbers of calls.
        seed: seed of everything that is drawn.
        ceiling: number of calls at which the limit of the model is measured; 0 for none.
        beyond: solvers to measure beside the paper's; () for none.
        batch: number of samples that go through the network together.
        store: file of measurements to read and to add to.
        progress: whether to show progress.
    """

    n: int | None = None
    nfe: tuple[int, ...] | None = None
    seed: int = 0
    ceiling: int = 0
    beyond: tuple[str, ...] | None = None
    batch: int | None = None
    store: Path | None = None
    progress: bool = False


@dataclass(frozen=True)
class Section:
    """Results of an experiment on one model. ``pictures`` are functions that write a file, by its name."""

    name: str
    title: str
    markdown: str
    results: Mapping[str, Any]
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


def chapter(heading: str, *paragraphs: str | Sequence[str]) -> list[str]:
    """Return the lines of a heading and of paragraphs and tables, with an empty line before each."""
    lines = [f"### {heading}"]
    for paragraph in paragraphs:
        lines += ["", *([paragraph] if isinstance(paragraph, str) else paragraph)]
    return lines


def machine() -> dict[str, Any]:
    """Return the facts that times depend on, and nothing that identifies a machine."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_report(
    out: Path, title: str, intro: Sequence[str], sections: Sequence[Section], options: Options, started: float
) -> Path:
    """Write pictures and results first and report.md last, and return the path of report.md."""
    seconds = time.perf_counter() - started
    facts = machine()
    lines = [f"# {title}", "", *intro, ""]
    lines += [
        f"Seed {options.seed}, torch {facts['torch']}, {facts['threads']} of {facts['cores']} cores "
        f"({facts['processor']}, {facts['vector instructions']}). The run took {_duration(seconds)}"
        + (", with stored figures reused." if options.store else ".")
    ]
    for section in sections:
        lines += ["", f"## {section.title}", "", section.markdown]
        for name, draw in section.pictures.items():
            out.mkdir(parents=True, exist_ok=True)
            draw(out / name)
            lines += ["", f"![{Path(name).stem}]({name})"]
    results = {
        "title": title,
        "machine": facts,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "on": {section.name: dict(section.results) for section in sections},
    }
    write_text(out / "results.json", json.dumps(_rounded(results), indent=1) + "\n")
    write_text(out / "report.md", wrapped("\n".join(lines).rstrip()) + "\n")
    return out / "report.md"


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def wrapped(text: str, width: int = 120) -> str:
    """Wrap paragraphs and list items; tables, headings, pictures and code are not changed."""
    lines, code = list[str](), False
    for line in text.split("\n"):
        code ^= line.startswith("```")
        if len(line) <= width or code or line.startswith(("|", "!", "<", "#", "`" * 3)):
            lines.append(line)
            continue
        lines += textwrap.wrap(line, width, subsequent_indent="  " * line.startswith("- "), break_long_words=False,
                               break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    """Round numbers to six digits, and replace NaN by None, since JSON has no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
