"""Quality of synthetic rows of a table: all measures, the judge of a model of tables, and the report for people.

report = table_report(rows, train, held_out, target="income")
report.save("folder")
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from bfn.data.sources import SOURCES
from bfn.data.table_columns import TableColumns
from bfn.data.table_files import as_frame, read_table
from bfn.quality import table_measures
from bfn.quality.comparison import VERSIONS, markdown_table
from bfn.quality.judge import Judge, JudgePart, Measure, data_of
from bfn.quality.table_measures import MOST_ROWS, Floats, ShapesAndTrends, TableFeatures, subsample

LEAST_ROWS = 30
"""Minimum number of rows of each table."""

_score = partial(Measure, better="high", digits=3, highest=1.0)


# --- measures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableQuality(JudgePart):
    """Measures of rows, compared with the training rows and with held-out rows of the same table.

        quality = TableQuality.of(train, held_out, target="income")
        quality.figures(rows), quality.real, quality.independent       # each scale with its two ends

    Attributes:
        features: columns of the training rows.
        train, held_out: matrices of their rows.
        target: the column that is predicted.
        seed: seed of everything that is chosen at random.
        decode: function from packed samples to a table. Real rows are given by their numbers among the held-out ones.
    """

    least = LEAST_ROWS
    features: TableFeatures
    train: Floats
    held_out: Floats
    target: str
    seed: int = 0
    decode: Callable[[Tensor], Any] = lambda rows: rows

    @classmethod
    def of(cls, train: Any, held_out: Any, target: str | None = None, seed: int = 0) -> TableQuality:
        """Read two DataFrames, pyarrow Tables or paths. The target is the last column by default."""
        train = as_frame(train)
        features = TableFeatures.of(train)
        target = features.names[features.place(target or features.names[-1])]
        matrices = _matrix(features, train, "training rows"), _matrix(features, held_out, "held-out rows")
        return cls(features, *matrices, target, seed)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The measures, the one that ranks samplers first."""
        what = f"AUC of {self.target}" if self._target_is_class else f"R2 of {self.target}"
        found = [
            _score("two_sample", "two-sample score against training rows"),
            _score("two_sample_held_out", "two-sample score against held-out rows"),
            _score("learned", f"learned from the rows, tested on held-out ones: {what}"),
            _score("shape", "shape of the columns"),
            _score("trend", "trend of pairs of columns"),
            _score("alpha_precision", "alpha-precision"),
            Measure("beta_recall", "beta-recall", "real", digits=3, highest=1.0),
            Measure.share("nearer_to_training", "nearer to training than to held-out rows", "real", headline=False),
            Measure.share("copies", "copies of training rows", "real", digits=2, headline=False),
        ]
        single = len(self.features.columns) == 1
        return tuple(measure for measure in found if not (single and measure.key in ("learned", "trend")))

    def figures(self, rows: Any) -> dict[str, Estimate]:
        """Return all measures of a table of rows."""
        return self._figures(_matrix(self.features, rows, "rows to judge"))

    @cached_property
    def real(self) -> Mapping[str, Estimate]:
        """Figures of real rows: held-out rows against training rows, and training rows against held-out rows."""
        return {**self._against_training(self.held_out), **self._against_held_out(self.train, real=True)}

    @cached_property
    def independent(self) -> Mapping[str, Estimate]:
        """Figures of rows in which every column is right and all columns are independent."""
        generator = self._generator()
        orders = [torch.randperm(len(self.train), generator=generator).numpy() for _ in self.features.columns]
        return self._figures(np.take_along_axis(self.train, np.stack(orders, 1), 0))

    @cached_property
    def key(self) -> str:
        """Name of the real rows, the target and the seed."""
        matrices = [torch.from_numpy(np.nan_to_num(matrix, nan=-1e300)) for matrix in (self.train, self.held_out)]
        return digest("table-1", self.target, str(self.seed), str(self.features.names), *matrices)

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]]:
        return "independent columns", self.independent

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return self.figures(self.decode(x))

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return dict(self.real)

    def _figures(self, rows: Floats) -> dict[str, Estimate]:
        found = {**self._against_training(rows), **self._against_held_out(rows)}
        return {measure.key: found[measure.key] for measure in self.measures if measure.key in found}

    def _against_training(self, rows: Floats) -> dict[str, Estimate]:
        own, train = self._vectors(rows), self._vectors(self.train)
        return {
            "two_sample": table_measures.two_sample(self.features, rows, self.train, self._generator()),
            **ShapesAndTrends(self.features, rows, self.train).estimates(self._generator()),
            **table_measures.precision_and_recall(own, train, self._generator()),
            "copies": table_measures.copies(rows, self.train),
        }

    def _against_held_out(self, rows: Floats, real: bool = False) -> dict[str, Estimate]:
        target = self.features.place(self.target)
        # For real rows it is one half by definition: chance decides which rows are held out.
        nearness = Estimate(0.5)
        if not real:
            own, train, held_out = (self._vectors(matrix) for matrix in (rows, self.train, self.held_out))
            nearness = table_measures.nearer_to_training(own, train, held_out, self._generator())
        return {
            "two_sample_held_out": table_measures.two_sample(self.features, rows, self.held_out, self._generator()),
            "learned": table_measures.learned(
                self.features, rows, self.held_out, target, self._target_is_class, self._generator()
            ),
            "nearer_to_training": nearness,
        }  # fmt: skip

    def _vectors(self, matrix: Floats) -> Tensor:
        """Return vectors of a subsample: the one-hot vectors of all rows of a large table would need much memory."""
        return self.features.vectors(subsample(torch.from_numpy(matrix), MOST_ROWS, self._generator()).numpy())

    @cached_property
    def _target_is_class(self) -> bool:
        return self.features.is_class(self.features.place(self.target), self.train)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def _matrix(features: TableFeatures, table: Any, what: str) -> Floats:
    """Return the matrix of a table. Raises UserError if its rows are too few to judge."""
    matrix = features.matrix(table)
    if len(matrix) < LEAST_ROWS:
        raise UserError(f"{len(matrix)} {what}: expected at least {LEAST_ROWS}")
    return matrix


# --- the judge of a model ---------------------------------------------------------------------------------------------


def table_judge(model: Model, data: Any = None, train: Any = None, target: str | None = None) -> Judge:
    """Return the judge of a model of tables. For ``data`` and ``train`` see :func:`table_parts`."""
    quality = TableQuality.of(*table_parts(model, data, train), target)
    part = replace(quality, decode=lambda x: model.decode(model.flow.unpack(x)))
    return Judge("table", (part,), torch.arange(len(quality.held_out)), prepare=model.as_data)


def table_parts(model: Model, data: Any = None, train: Any = None) -> tuple[Any, Any]:
    """Return training rows and held-out rows with the columns of a model.

    Args:
        model: a model of tables.
        data: held-out rows, a DataFrame or a file; or, without ``train``, the name of a standard table, which has both
            parts. By default, the table that the model was trained on.
        train: training rows, a DataFrame or a file.
    """
    columns = model.info.columns
    if columns is None:
        raise UserError("a model of something else than a table: its samples are judged by other metrics")
    source = data_of(model, data)
    if train is None and str(source) in SOURCES and SOURCES[str(source)].is_table:
        tables = [read_table(str(source), "train"), read_table(str(source), "test")]
    elif train is None or source is None:
        lacking = "held-out rows: data=FILE" if source is None else "rows it was trained on: train=FILE"
        raise UserError(f"a table is judged beside training rows and rows that were held out: say the {lacking}")
    else:
        tables = [as_frame(train), as_frame(source)]
    return _with_columns(tables[0], columns, "training"), _with_columns(tables[1], columns, "held-out")


def _with_columns(table: Any, columns: TableColumns, what: str) -> Any:
    """Return the columns of the model, with texts for those that are texts: files of digits are read as numbers."""
    absent = next((name for name in columns.names if name not in table.columns), None)
    if absent is not None:
        raise UserError(f"{what} rows: column {absent!r} is missing: expected {', '.join(columns.names)}")
    table = table[list(columns.names)]
    texts = [column.name for column in columns.columns if column.cells.kind == "text"]
    numbers = [name for name in texts if table[name].dtype.kind in "iufb"]
    return table.assign(**{name: table[name].astype(object).map(str, na_action="ignore") for name in numbers})


# --- the report -------------------------------------------------------------------------------------------------------

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
    """Measures of rows, beside those of real rows and of independent columns.

    Attributes:
        name: name of the rows.
        quality: the measures and the real rows.
        figures: figures of the rows.
        shapes: shape of each column.
        trends: trend of each pair of columns, by their indices.
        rows, train: the rows and the training rows, as DataFrames.
    """

    name: str
    quality: TableQuality
    figures: Mapping[str, Estimate]
    shapes: Mapping[str, float]
    trends: Mapping[tuple[int, int], float]
    rows: Any
    train: Any

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows, of training rows and of held-out rows."""
        return {"rows": len(self.rows), "train": len(self.train), "held_out": len(self.quality.held_out)}

    @property
    def ends(self) -> dict[str, Mapping[str, Estimate]]:
        """Figures of the rows and of the two ends of every scale."""
        return dict([(self.name, self.figures), ("real rows", self.quality.real), self.quality.baseline])

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of the table of all measures."""
        rows = []
        for of in self.quality.measures:
            figures = (of.show(own[of.key]) if of.key in own else "" for own in self.ends.values())
            rows.append([of.label, *figures, BETTER[of.better]])
        return ["", *self.ends, ""], rows

    def lines(self) -> list[str]:
        """Return in words how it was measured."""
        n, train, held_out = self.sizes.values()
        return [
            f"{n} rows against {train} training rows and {held_out} held-out rows; 95 % intervals; seed "
            f"{self.quality.seed}; torch {VERSIONS['torch']}, Python {VERSIONS['python']}.",
            "Two-sample score: 1 - 2 |AUC - 1/2| of boosted trees that tell rows from real ones, 1 where they cannot. "
            f"Learned from the rows: trees that predict {self.quality.target} are trained on the rows and tested on "
            "held-out ones. Real rows: the held-out rows in place of synthetic ones, or training rows where held-out "
            "ones judge. Independent columns: training rows, each column shuffled.",
        ]

    def markdown(self, pictures: Mapping[str, str] | None = None) -> str:
        """Return the report in Markdown.

        Args:
            pictures: paths of pictures to show, by their title.
        """
        shapes = [[name, f"{value:.4f}"] for name, value in self.shapes.items()]
        lines = [f"# Rows of {self.name}", "", *(f"{line}\n" for line in self.lines()), *markdown_table(*self.cells())]
        lines += ["", "## Columns", "", *markdown_table(["column", "shape"], shapes)]
        if self.trends:
            lines += ["", "## Pairs that differ most", "", *markdown_table(["pair", "trend"], self._trend_cells())]
        for what, path in (pictures or {}).items():
            lines += ["", f"![{what}]({path})"]
        return "\n".join(lines) + "\n"

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = list(self.shapes)
        ends = zip(("rows", "real", "independent_columns"), self.ends.values(), strict=True)
        return {
            "name": self.name, "target": self.quality.target, "seed": self.quality.seed, "sizes": self.sizes,
            "measures": [{"key": of.key, "label": of.label, "better": of.better} for of in self.quality.measures],
            **{end: {key: figure.asdict() for key, figure in figures.items()} for end, figures in ends},
            "shapes": dict(self.shapes),
            "trends": [
                [names[i], names[j], None if np.isnan(value) else value] for (i, j), value in self.trends.items()
            ],
            "versions": VERSIONS,
        }  # fmt: skip

    def pictures(self) -> dict[str, str]:
        """Draw all scales, columns and pairs, each as SVG."""
        from bfn.viz import plots

        drawn: dict[str, Any] = {
            "scales": plots.scales(self.quality.measures, self.ends).get_figure(root=True),
            "columns": plots.table_columns(self.train, self.rows, self.shapes),
        }
        if self.trends:
            drawn["pairs"] = plots.pair_trends(list(self.shapes), self.trends).get_figure(root=True)
        files = {name: io.StringIO() for name in drawn}
        for name, file in files.items():
            drawn[name].savefig(file, format="svg", metadata={"Date": None})
        return {name: file.getvalue() for name, file in files.items()}

    def html(self, pictures: Mapping[str, str] | None = None) -> str:
        """Return the report as one page that needs no other files.

        Args:
            pictures: the result of :meth:`pictures`, if it is known already.
        """
        images = {name: _html_image(name, svg) for name, svg in (pictures or self.pictures()).items()}
        title = html.escape(f"Rows of {self.name}")
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

    def _trend_cells(self) -> list[list[str]]:
        names = list(self.shapes)
        worst = sorted((value, pair) for pair, value in self.trends.items() if not np.isnan(value))[:WORST_PAIRS]
        return [[f"{names[i]}, {names[j]}", f"{value:.4f}"] for value, (i, j) in worst]


def table_report(
    rows: Any, train: Any, held_out: Any, *, target: str | None = None, name: str = "synthetic rows", seed: int = 0
) -> TableReport:
    """Compare rows with the training rows of a model and with held-out rows of the same table.

    Args:
        rows, train, held_out: DataFrames, pyarrow Tables or files.
        target: the column that is to be predicted, the last one by default.
        name: name of the rows in the report.
        seed: seed of everything that is chosen at random.
    """
    rows, train = as_frame(rows), as_frame(train)
    quality = TableQuality.of(train, held_out, target, seed)
    figures, ones = quality.figures(rows), np.ones(len(rows))
    alike = ShapesAndTrends(quality.features, quality.features.matrix(rows), quality.train)
    shapes = dict(zip(quality.features.names, alike.shapes(ones).tolist(), strict=True))
    trends = dict(zip(alike.pairs, alike.trends(ones).tolist(), strict=True))
    return TableReport(name, quality, figures, shapes, trends, rows, train)


def _html_image(name: str, svg: str) -> str:
    return f'<img alt="{name}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def _html_table(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
