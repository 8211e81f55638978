"""A report on synthetic rows: every measure between its two ends, columns and pairs, as Markdown, JSON and HTML."""

from __future__ import annotations

import base64
import html
import io
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bfn.data.table_inference import as_frame
from bfn.estimate import Estimate
from bfn.files import atomic_write
from bfn.quality.judge import Measure
from bfn.quality.markdown import markdown_table
from bfn.quality.table_quality import TableQuality

__all__ = ["TableReport", "table_report"]

WORST_PAIRS = 10
BETTER = {"high": "higher is better", "low": "lower is better", "real": "nearer to real rows is better"}
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #8884; text-align: left; white-space: nowrap }
td:first-child { white-space: normal; min-width: 11rem }
td + td { font-variant-numeric: tabular-nums; font-size: 14px }
img { max-width: 100%; background: #fff; border-radius: 6px }
.note { opacity: .75 }
"""


@dataclass(frozen=True, eq=False)
class TableReport:
    """What was measured of rows, beside real rows and independent columns.

    shapes: of each column. trends: of each pair of columns, by their places. sizes: rows to judge, training, held out.
    """

    name: str
    target: str
    measures: tuple[Measure, ...]
    figures: Mapping[str, Estimate]
    real: Mapping[str, Estimate]
    independent: Mapping[str, Estimate]
    shapes: Mapping[str, float]
    trends: Mapping[tuple[int, int], float]
    sizes: tuple[int, int, int]
    seed: int
    rows: Any
    train: Any

    @property
    def ends(self) -> dict[str, Mapping[str, Estimate]]:
        """The rows, and the two ends of every scale."""
        return {self.name: self.figures, "real rows": self.real, "independent columns": self.independent}

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the table of all measures."""
        rows = [
            [
                of.label,
                *(of.show(own[of.key]) if of.key in own else "" for own in self.ends.values()),
                BETTER[of.better],
            ]
            for of in self.measures
        ]
        return ["", *self.ends, ""], rows

    def lines(self) -> list[str]:
        """How it was measured, in words."""
        n, seen, held_out = self.sizes
        return [
            f"{n} rows against {seen} training rows and {held_out} held-out rows; 95 % intervals; seed {self.seed}; "
            f"torch {torch.__version__}, Python {platform.python_version()}.",
            "Two-sample score: 1 - 2 |AUC - 1/2| of boosted trees that tell rows from real ones, 1 where they cannot. "
            f"Learned from the rows: trees that predict {self.target} are trained on the rows and tested on held-out "
            "ones. Real rows: the held-out rows in place of synthetic ones, or training rows where held-out ones "
            "judge. Independent columns: training rows, each column shuffled.",
        ]

    def markdown(self, pictures: Mapping[str, str] | None = None) -> str:
        """The report; pictures: files to show, by what they show."""
        lines = [f"# Rows of {self.name}", ""]
        for line in self.lines():
            lines += [line, ""]
        lines += markdown_table(*self.cells())
        lines += ["", "## Columns", "", *markdown_table(["column", "shape"], self._shape_cells())]
        if self.trends:
            lines += ["", "## Pairs that differ most", "", *markdown_table(["pair", "trend"], self._trend_cells())]
        for what, path in (pictures or {}).items():
            lines += ["", f"![{what}]({path})"]
        return "\n".join(lines) + "\n"

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        names = list(self.shapes)
        ends = {"rows": self.figures, "real": self.real, "independent_columns": self.independent}
        return {
            "name": self.name, "target": self.target, "seed": self.seed,
            "sizes": dict(zip(("rows", "train", "held_out"), self.sizes, strict=True)),
            "measures": [{"key": of.key, "label": of.label, "better": of.better} for of in self.measures],
            **{end: {key: figure.asdict() for key, figure in figures.items()} for end, figures in ends.items()},
            "shapes": dict(self.shapes),
            "trends": [[names[i], names[j], _plain(value)] for (i, j), value in self.trends.items()],
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip

    def pictures(self) -> dict[str, str]:
        """All scales, columns and pairs, each drawn as SVG."""
        from bfn.viz import tables

        drawn = {
            "scales": tables.scales(self.measures, self.ends).get_figure(root=True),
            "columns": tables.table_columns(self.train, self.rows, self.shapes),
        }
        if self.trends:
            drawn["pairs"] = tables.pair_trends(list(self.shapes), self.trends).get_figure(root=True)
        return {name: _svg(figure) for name, figure in drawn.items()}

    def html(self, pictures: Mapping[str, str] | None = None) -> str:
        """One page that needs nothing else. pictures: as :meth:`pictures` gives them, where they are at hand."""
        drawn = self.pictures() if pictures is None else pictures
        title = html.escape(f"Rows of {self.name}")
        images = {name: _html_image(name, picture) for name, picture in drawn.items()}
        parts = [
            f"<h1>{title}</h1>", *(f'<p class="note">{html.escape(line)}</p>' for line in self.lines()),
            _html_table(*self.cells()), images["scales"], "<h2>Columns</h2>",
            "<p>Shares, or histograms between the 0.5 % and 99.5 % quantiles; in brackets the shape.</p>",
            images["columns"],
        ]  # fmt: skip
        if "pairs" in images:
            parts += [
                "<h2>Pairs of columns</h2>",
                images["pairs"],
                _html_table(["pair", "trend"], self._trend_cells()),
            ]
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        body = f"<head>{head}<style>{STYLE}</style></head><body>{''.join(parts)}</body>"
        return f"<!doctype html><html lang=en>{body}</html>\n"

    def save(self, directory: Path | str) -> list[Path]:
        """Write report.html, report.md with its pictures, and report.json into a directory."""
        drawn, directory = self.pictures(), Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, picture in drawn.items():
            atomic_write(directory / f"{name}.svg", picture)
        atomic_write(directory / "report.md", self.markdown({name: f"{name}.svg" for name in drawn}))
        atomic_write(directory / "report.json", json.dumps(self.asdict(), indent=2) + "\n")
        atomic_write(directory / "report.html", self.html(drawn))
        return [directory / name for name in ("report.html", "report.md", "report.json")]

    def _shape_cells(self) -> list[list[str]]:
        return [[name, f"{value:.4f}"] for name, value in self.shapes.items()]

    def _trend_cells(self) -> list[list[str]]:
        names = list(self.shapes)
        worst = sorted((value, pair) for pair, value in self.trends.items() if not np.isnan(value))[:WORST_PAIRS]
        return [[f"{names[i]}, {names[j]}", f"{value:.4f}"] for value, (i, j) in worst]


def table_report(
    rows: Any, train: Any, held_out: Any, *, target: str | None = None, name: str = "synthetic rows", seed: int = 0
) -> TableReport:
    """Judge rows by the table that a model was trained on and by rows that were held out.

    Each is a DataFrame, a pyarrow Table or a file. target: the column that is to be predicted, the last if None.
    """
    rows, train = as_frame(rows), as_frame(train)
    quality = TableQuality.of(train, held_out, target, seed)
    alike, ones = quality.shapes_and_trends(rows), np.ones(len(rows))
    shapes = dict(zip(quality.features.names, alike.shapes(ones).tolist(), strict=True))
    trends = dict(zip(alike.pairs, alike.trends(ones).tolist(), strict=True))
    sizes = len(rows), len(train), len(quality.held_out)
    return TableReport(
        name, quality.target, quality.measures, quality.figures(rows), quality.real, quality.independent, shapes,
        trends, sizes, seed, rows, train,
    )  # fmt: skip


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def _svg(figure: Any) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _html_image(name: str, svg: str) -> str:
    return f'<img alt="{name}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def _html_table(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
