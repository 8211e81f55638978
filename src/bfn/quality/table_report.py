"""The judge of a model of tables, and the real rows that it needs: those to learn from, and those held out."""

from __future__ import annotations

import base64
import html
import io
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn._utils.estimate import Estimate
from bfn._utils.files import atomic_write
from bfn._utils.pieces import digest
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.data.loading import from_card
from bfn.data.sources import SOURCES
from bfn.data.table_columns import TableColumns
from bfn.data.table_files import as_frame, read_table
from bfn.quality.comparison import markdown_table
from bfn.quality.judge import Judge, JudgePart, Measure
from bfn.quality.table_measures import (
    MOST_ROWS,
    Floats,
    ShapesAndTrends,
    TableFeatures,
    copies,
    learned,
    nearer_to_training,
    precision_and_recall,
    two_sample,
)


@dataclass(frozen=True, eq=False)
class TableRows(JudgePart):
    """All measures of a table, of packed samples; real rows are given by their numbers among those held out."""

    model: Model
    quality: TableQuality

    @property
    def measures(self) -> tuple[Measure, ...]:
        return self.quality.measures

    @property
    def key(self) -> str:
        return self.quality.key

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]]:
        return "independent columns", self.quality.independent

    def problem(self, n: int) -> str | None:
        return None if n >= LEAST_ROWS else f"n={n}: a table is judged by at least {LEAST_ROWS} rows"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        columns = self.model.info.columns
        assert columns is not None
        return self.quality.figures(columns.decode(self.model.flow.unpack(x)))

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return dict(self.quality.real)


def table_judge(model: Model, data: Any = None, train: Any = None, target: str | None = None) -> Judge:
    """The judge of a model of tables. data: held-out rows, train: training rows, as :func:`table_parts` takes them."""
    seen, held_out = table_parts(model, data, train)
    quality = TableQuality.of(seen, held_out, target)
    numbers = torch.arange(len(quality.held_out))
    return Judge("table", (TableRows(model, quality),), numbers, prepare=model.as_data)


def table_parts(model: Model, data: Any = None, train: Any = None) -> tuple[Any, Any]:
    """Training rows and held-out rows, with the columns of a model.

    data: held-out rows, train: training rows, a DataFrame or a file each; data alone may be the name of a standard
    table, which has both parts, and is the one that the model was trained on if None.
    """
    columns = model.info.columns
    if columns is None:
        raise UserError("a model of something else than a table: its samples are judged by other metrics")
    own = model.info.trained_on.get("name")
    source = data if data is not None or own is None else from_card(own)
    if train is None and isinstance(source, str | Path) and _is_table(str(source)):
        train, source = str(source), _Test(str(source))
    if train is None or source is None:
        lacking = "held-out rows: data=FILE" if source is None else "rows it was trained on: train=FILE"
        raise UserError(f"a table is judged beside training rows and rows that were held out: say the {lacking}")
    tables = [read_table(some.name, "test") if isinstance(some, _Test) else as_frame(some) for some in (train, source)]
    for table, what in zip(tables, ("training", "held-out"), strict=True):
        absent = next((name for name in columns.names if name not in table.columns), None)
        if absent is not None:
            raise UserError(f"{what} rows: column {absent!r} is missing: expected {', '.join(columns.names)}")
    first, second = (_as_texts(table[list(columns.names)], columns) for table in tables)
    return first, second


def _as_texts(table: Any, columns: TableColumns) -> Any:
    """With texts where the model has texts: a file of them that look like numbers is read as numbers."""
    texts = [column.name for column in columns.columns if column.cells.kind == "text"]
    numbers = [name for name in texts if table[name].dtype.kind in "iufb"]
    return table.assign(**{name: table[name].astype(object).map(str, na_action="ignore") for name in numbers})


@dataclass(frozen=True)
class _Test:
    """The test part of a standard table."""

    name: str


def _is_table(name: str) -> bool:
    return name in SOURCES and SOURCES[name].is_table


LEAST_ROWS = 30
"""Fewer rows, on either side, are not judged."""


@dataclass(frozen=True, eq=False)
class TableQuality:
    """Measures of rows against the table that a model was trained on, and rows of the same table that it has not seen.

        quality = TableQuality.of(train, held_out, target="income")
        quality.figures(rows), quality.real, quality.independent       # each scale with its two ends

    target: the column that is predicted, the last one if None. seed: of what is chosen at random.
    """

    features: TableFeatures
    train: Floats
    held_out: Floats
    target: str
    seed: int = 0

    @classmethod
    def of(cls, train: Any, held_out: Any, target: str | None = None, seed: int = 0) -> TableQuality:
        """From two DataFrames, pyarrow Tables or paths."""
        train, held_out = as_frame(train), as_frame(held_out)
        features = TableFeatures.of(train)
        tables = {"training": train, "held-out": held_out}
        few = next((name for name, table in tables.items() if len(table) < LEAST_ROWS), None)
        if few is not None:
            raise UserError(f"{len(tables[few])} {few} rows: expected at least {LEAST_ROWS} to judge others by")
        name = features.names[-1] if target is None else features.names[features.place(target)]
        return cls(features, features.matrix(train), features.matrix(held_out), name, seed)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What there is, the one that ranks samplers first."""
        what = f"AUC of {self.target}" if self._target_is_class else f"R2 of {self.target}"
        high = {"better": "high", "digits": 3, "highest": 1.0}
        found = [
            Measure("two_sample", "two-sample score against training rows", **high),  # type: ignore[arg-type]
            Measure("two_sample_held_out", "two-sample score against held-out rows", **high),  # type: ignore[arg-type]
            Measure("learned", f"learned from the rows, tested on held-out ones: {what}", **high),  # type: ignore[arg-type]
            Measure("shape", "shape of the columns", **high),  # type: ignore[arg-type]
            Measure("trend", "trend of pairs of columns", **high),  # type: ignore[arg-type]
            Measure("alpha_precision", "alpha-precision", **high),  # type: ignore[arg-type]
            Measure("beta_recall", "beta-recall", "real", digits=3, highest=1.0),
            Measure("nearer_to_training", "nearer to training than to held-out rows", "real", "%", 100, 1, False, 1.0),
            Measure("copies", "copies of training rows", "real", "%", 100, 2, False, 1.0),
        ]
        single = len(self.features.columns) == 1
        return tuple(measure for measure in found if not (single and measure.key in ("learned", "trend")))

    def figures(self, rows: Any) -> dict[str, Estimate]:
        """All measures of a table of rows."""
        return self._figures(self._checked(self.features.matrix(rows)))

    @cached_property
    def real(self) -> Mapping[str, Estimate]:
        """What real rows get: the held-out ones in place of rows, training rows where held-out ones are the judges."""
        return {**self._against_training(self.held_out), **self._against_held_out(self.train, real=True)}

    @cached_property
    def independent(self) -> Mapping[str, Estimate]:
        """What rows get that have every column right and nothing between them."""
        return self._figures(self.independent_rows)

    @property
    def independent_rows(self) -> Floats:
        """The training rows with each column in an order of its own."""
        generator = self._generator()
        found = self.train.copy()
        for j in range(found.shape[1]):
            found[:, j] = found[torch.randperm(len(found), generator=generator).numpy(), j]
        return found

    @cached_property
    def key(self) -> str:
        """Names the real rows, the target and the seed."""
        matrices = [torch.from_numpy(np.nan_to_num(matrix, nan=-1e300)) for matrix in (self.train, self.held_out)]
        return digest("table-1", self.target, str(self.seed), str(self.features.names), *matrices)

    def shapes_and_trends(self, rows: Any) -> ShapesAndTrends:
        """Column by column and pair by pair, against training rows."""
        return ShapesAndTrends(self.features, self._checked(self.features.matrix(rows)), self.train)

    def _figures(self, rows: Floats) -> dict[str, Estimate]:
        found = {**self._against_training(rows), **self._against_held_out(rows)}
        return {measure.key: found[measure.key] for measure in self.measures if measure.key in found}

    def _against_training(self, rows: Floats) -> dict[str, Estimate]:
        own, seen = self._vectors(rows), self._vectors(self.train)
        return {
            "two_sample": two_sample(self.features, rows, self.train, self._generator()),
            **ShapesAndTrends(self.features, rows, self.train).estimates(self._generator()),
            **precision_and_recall(own, seen, self._generator()),
            "copies": copies(rows, self.train),
        }

    def _against_held_out(self, rows: Floats, real: bool = False) -> dict[str, Estimate]:
        target = self.features.place(self.target)
        own, seen, unseen = (self._vectors(matrix) for matrix in (rows, self.train, self.held_out))
        return {
            "two_sample_held_out": two_sample(self.features, rows, self.held_out, self._generator()),
            "learned": learned(
                self.features, rows, self.held_out, target, self._target_is_class, self._generator()
            ),
            # Of real rows that are neither it is one half by the toss that decides which are held out.
            "nearer_to_training": Estimate(0.5) if real else nearer_to_training(own, seen, unseen, self._generator()),
        }  # fmt: skip

    def _vectors(self, matrix: Floats) -> Tensor:
        """Of as many rows as neighbours are looked for: all levels of all rows of a large table would not fit."""
        some = torch.randperm(len(matrix), generator=self._generator())[:MOST_ROWS].numpy()
        return self.features.vectors(matrix if len(matrix) <= MOST_ROWS else matrix[some])

    @cached_property
    def _target_is_class(self) -> bool:
        return self.features.is_class(self.features.place(self.target), self.train)

    def _checked(self, rows: Floats) -> Floats:
        if len(rows) < LEAST_ROWS:
            raise UserError(f"{len(rows)} rows to judge: expected at least {LEAST_ROWS}")
        return rows

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


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
        from bfn.viz import plots as tables

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
            parts += ["<h2>Pairs of columns</h2>", images["pairs"], _html_table(["pair", "trend"], self._trend_cells())]
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
