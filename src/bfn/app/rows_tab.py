"""The page's tab of tables: choose known cells and ranges, see rows that have them."""

import html
from collections.abc import Callable, Generator, Mapping
from typing import Any

import gradio as gr
import numpy as np

from bfn.app import requests
from bfn.app.messages import spoken
from bfn.app.requests import RowsRequest
from bfn.data import TableColumn
from bfn.model import BFN
from bfn.tables.row_sampling import RowRequest, draw_rows

__all__ = ["row_view", "rows_tab"]

NOTE = """<p class="bfn-note">Rows that are nobody's. Known cells, as <code>education=Doctorate; age=50</code>,
are kept while the others are drawn given them; ranges, as <code>age&gt;40</code> or <code>country in FR, IT</code>, by
drawing until they hold.</p>"""
SHOWN_LEVELS = 8
CALLS, ROWS = 20, 20
"""That the tab has at first."""


def rows_tab(tables: Mapping[str, BFN]) -> None:
    """Its widgets, and what they do."""
    first = next(iter(tables))
    gr.HTML(NOTE)
    with gr.Row():
        table = gr.Dropdown(list(tables), value=first, label="table", elem_id="table")
        given = gr.Textbox("", label="known cells and ranges, with ; between", max_lines=1, elem_id="given", scale=3,
                           max_length=requests.MAX_GIVEN, placeholder="education=Doctorate; age>40")  # fmt: skip
        calls = gr.Slider(1, requests.MAX_CALLS, CALLS, step=1, label="network calls", elem_id="rows-calls")
        n = gr.Slider(1, requests.MAX_ROWS, ROWS, step=1, label="rows", elem_id="rows-n")
        seed = gr.Number(0, label="seed", minimum=0, maximum=requests.MAX_SEED, precision=0, elem_id="rows-seed")
    with gr.Row():
        go = gr.Button("Draw", variant="primary", elem_id="rows-draw", scale=3)
        stop = gr.Button("Stop", variant="stop", elem_id="rows-stop", scale=1)
    shown = gr.HTML('<div class="bfn-panel bfn-empty"><p>press Draw</p></div>', elem_id="rows")
    columns = gr.HTML(_columns_view(tables[first]), elem_id="rows-columns")
    drawing = go.click(
        _drawer(tables), [table, given, calls, n, seed], shown, api_name="rows", preprocess=False,
        show_progress="hidden", concurrency_id="work",
    )  # fmt: skip
    stop.click(None, cancels=[drawing])

    def described(name: object) -> str:
        with spoken():
            return _columns_view(tables[requests.choice({"table": name}, "table", tables)])

    table.change(described, table, columns, preprocess=False, api_visibility="private", queue=False,
                 show_progress="hidden")  # fmt: skip


def _drawer(tables: Mapping[str, BFN]) -> Callable[..., Generator[str, None, None]]:
    def draw(*values: object) -> Generator[str, None, None]:
        """Rows that have what is asked for."""
        with spoken():
            request = requests.read_rows(values, tables)
            yield '<div class="bfn-panel bfn-empty"><p>drawing</p></div>'
            yield row_view(tables[request.table], request)

    return draw


def row_view(model: BFN, request: RowsRequest) -> str:
    """The rows as HTML, and how they were found."""
    columns = model.info.columns
    assert columns is not None
    wishes = RowRequest.read(columns, request.given)
    report = wishes.report()
    pieces = draw_rows(model, request.n, wishes, report, nfe=request.calls, seed=request.seed, batch=1024)
    tables = [piece.to_html(index=False, border=0, escape=True, header=not i) for i, piece in enumerate(pieces)]
    told = "".join(f"<p class='bfn-note'>{html.escape(line)}</p>" for line in report.lines())
    return f'<div class="bfn-panel bfn-rows">{"".join(tables)}{told}</div>'


def _columns_view(model: BFN) -> str:
    """What may be asked for: every column, with its levels or its range."""
    columns = model.info.columns
    assert columns is not None
    lines = [f"<li><b>{html.escape(c.name)}</b>: {html.escape(_described(c))}</li>" for c in columns.columns]
    return f'<details class="bfn-note"><summary>columns of the table</summary><ul>{"".join(lines)}</ul></details>'


def _described(column: TableColumn) -> str:
    if column.quantiles is not None:
        ends = column.quantiles.decode(np.array(column.quantiles.normal)[[0, -1]])
        low, high = column.cells.series(ends, np.zeros(2, bool), column.name)
        return f"{low} to {high}"
    some = np.arange(min(SHOWN_LEVELS, len(column.levels)))
    levels: list[Any] = column.series(some, None).tolist()
    more = f", ... ({len(column.levels)} in all)" if len(column.levels) > SHOWN_LEVELS else ""
    return ", ".join(map(str, levels)) + more
