"""The page: its tabs with their widgets, and what happens when a button is pressed."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Generator, Mapping
from importlib import resources
from itertools import chain
from typing import Any

import gradio as gr
import numpy as np

from bfn import solvers
from bfn.app import drawing, requests
from bfn.app.drawing import Models
from bfn.app.requests import EACH, OWN, SHARED, Limits, RowsRequest, errors_on_page
from bfn.core.model import BFN
from bfn.core.sampling import Request
from bfn.data.table_columns import TableColumn
from bfn.tables.sampling import RowRequest, draw_rows

NOTE = """<p class="bfn-note">Synthetic rows. Known cells, such as <code>education=Doctorate; age=50</code>, are kept
and the others are drawn given them. Ranges, such as <code>age&gt;40</code> or <code>country in FR, IT</code>, are met
by rejection: rows are drawn until enough of them fit.</p>"""
SHOWN_LEVELS = 8
CALLS, ROWS = 20, 20
"""Initial values of the tab of tables."""


EMPTY = '<div class="bfn-panel bfn-empty"><p>{}</p></div>'
AT_ONCE: dict[str, Any] = {
    "preprocess": False, "api_visibility": "private", "queue": False, "show_progress": "hidden",
}  # fmt: skip
"""Options of events that change widgets."""


def _seed(name: str, label: str = "seed") -> gr.Number:
    """Make the widget of a seed."""
    return gr.Number(0, label=label, minimum=0, maximum=requests.MAX_SEED, precision=0, elem_id=name)


def _buttons(prefix: str) -> Callable[..., Any]:
    """Make the buttons of a tab. Returns a function that says what they start and stop, and returns the event."""
    with gr.Row():
        go = gr.Button("Draw", variant="primary", elem_id=f"{prefix}draw", scale=3)
        stop = gr.Button("Stop", variant="stop", elem_id=f"{prefix}stop", scale=1)

    def run(draw: Callable[..., Any], inputs: list[Any], outputs: Any, name: str) -> Any:
        # Values are not preprocessed: `requests` checks what the browser has sent.
        options: dict[str, Any] = {"preprocess": False, "show_progress": "hidden", "concurrency_id": "work"}
        event = go.click(draw, inputs, outputs, api_name=name, **options)
        stop.click(None, cancels=[event])
        return event

    return run


def rows_tab(tables: Mapping[str, BFN]) -> None:
    """Make the tab of tables: known cells and ranges, and rows that have them."""
    first = next(iter(tables))
    gr.HTML(NOTE)
    with gr.Row():
        table = gr.Dropdown(list(tables), value=first, label="table", elem_id="table")
        given = gr.Textbox("", label="known cells and ranges, with ; between", max_lines=1, elem_id="given", scale=3,
                           max_length=requests.MAX_GIVEN, placeholder="education=Doctorate; age>40")  # fmt: skip
        calls = gr.Slider(1, requests.MAX_CALLS, CALLS, step=1, label="network calls", elem_id="rows-calls")
        n = gr.Slider(1, requests.MAX_ROWS, ROWS, step=1, label="rows", elem_id="rows-n")
        seed = _seed("rows-seed")
    run = _buttons("rows-")
    shown = gr.HTML(EMPTY.format("press Draw"), elem_id="rows")
    columns = gr.HTML(_columns_view(tables[first]), elem_id="rows-columns")

    def draw(*values: object) -> Generator[str, None, None]:
        with errors_on_page():
            request = requests.read_rows(values, tables)
            yield EMPTY.format("drawing")
            yield row_view(tables[request.table], request)

    def described(name: object) -> str:
        with errors_on_page():
            return _columns_view(tables[requests.choice({"table": name}, "table", tables)])

    run(draw, [table, given, calls, n, seed], shown, "rows")
    table.change(described, table, columns, **AT_ONCE)


def row_view(model: BFN, request: RowsRequest) -> str:
    """Return HTML with rows of a table and a report on the conditions."""
    columns = model.info.columns
    assert columns is not None
    wishes = RowRequest.read(columns, request.given)
    report = wishes.report()
    pieces = draw_rows(model, request.n, wishes, report, Request(nfe=request.calls), seed=request.seed, batch=1024)
    tables = [piece.to_html(index=False, border=0, escape=True, header=not i) for i, piece in enumerate(pieces)]
    told = "".join(f"<p class='bfn-note'>{html.escape(line)}</p>" for line in report.lines())
    return f'<div class="bfn-panel bfn-rows">{"".join(tables)}{told}</div>'


def _columns_view(model: BFN) -> str:
    """Return HTML with the columns of a table and their levels or ranges."""
    columns = model.info.columns
    assert columns is not None
    lines = [f"<li><b>{html.escape(c.name)}</b>: {html.escape(_described(c))}</li>" for c in columns.columns]
    return f'<details class="bfn-note"><summary>columns of the table</summary><ul>{"".join(lines)}</ul></details>'


def _described(column: TableColumn) -> str:
    """Return the levels or the range of a column."""
    if column.quantiles is not None:
        ends = column.quantiles.decode(np.array(column.quantiles.normal)[[0, -1]])
        low, high = column.cells.series(ends, np.zeros(2, bool), column.name)
        return f"{low} to {high}"
    some = np.arange(min(SHOWN_LEVELS, len(column.levels)))
    levels: list[Any] = column.series(some, None).tolist()
    more = f", ... ({len(column.levels)} in all)" if len(column.levels) > SHOWN_LEVELS else ""
    return ", ".join(map(str, levels)) + more


LIVE = 0.25
"""Seconds between two pictures of samples while they form."""
WORKERS = 2
"""Number of requests that are worked on at a time; others wait."""
WAITING = 16
TITLE = "Bayesian flow playground"
HEAD = f"""<h1>{TITLE}</h1><p>Two solvers draw from the same model and the same noise. Choose the number of network
calls of each, press Draw, and step through the calls to see the samples form.</p>"""
CONTROL = """<div class="bfn-control">
<button onclick="bfnFilm.play()" aria-label="play" title="play">&#9654;</button>
<input id="bfn-slider" type="range" min="0" max="1" step="1" value="1" aria-label="step through the network calls"
 oninput="bfnFilm.seek(this.value)"><span>from the first call to the last</span></div>"""
MIXTURE_NOTE = """<p class="bfn-note">The data are a mixture of Gaussians, for which the exact prediction is known, so
all errors are those of the solver. Open circles are the starts, the same for all solvers; filled circles are the
samples.</p>"""
ITS_OWN: tuple[str, str | float] = ("its own", OWN)
DIALS = [ITS_OWN, ("0: ODE", 0), ("0.5", 0.5), ("1: SDE", 1), ("2", 2), ("5", 5), ("10", 10), ("20", 20)]
STARTS = [ITS_OWN, ("0", 0), ("0.0001", 1e-4), ("0.001", 1e-3), ("0.01", 0.01), ("0.1", 0.1)]
DEFAULT_CALLS = 10
"""Initial number of network calls of a panel."""
USUAL = ("bfn", "auto")
"""Initial solvers of the two panels: the original one and ours."""


def build(models: Models) -> gr.Blocks:
    """Return the page for these models."""
    known = models.limits
    page: gr.Blocks
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(HEAD, elem_id="bfn-head")
        with gr.Tab("Samples", id="samples"):
            panels = _samples_tab(models, known)
        with gr.Tab("In the plane", id="plane"):
            _mixtures_tab()
        if models.tables:
            with gr.Tab("Tables", id="tables"):
                rows_tab(models.tables)
        page.load(
            _opener(models), None, panels, api_visibility="private", show_progress="hidden", concurrency_id="work"
        )
    page.queue(max_size=WAITING, default_concurrency_limit=WORKERS, api_open=False)
    return page


def theme() -> gr.themes.Base:
    """Return the theme. It has system fonts only, so that the page needs no other host."""
    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
    mono = ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")
    return gr.themes.Base(primary_hue="blue", secondary_hue="blue", neutral_hue="slate", font=sans, font_mono=mono)


def part(name: str) -> str:
    """Return the content of a file of this package."""
    return resources.files("bfn.app").joinpath(name).read_text(encoding="utf-8")


def _first(known: Mapping[str, Limits]) -> str:
    """Return the name of the model that the page opens with."""
    return next((name for name in ("mnist", "digits") if name in known), next(iter(known)))


def _samples_tab(models: Models, known: Mapping[str, Limits]) -> list[gr.HTML]:
    first = _first(known)
    limits, own = known[first], _options(models, first)
    with gr.Row():
        model = gr.Dropdown(list(known), value=first, label="model", elem_id="model")
        label = gr.Dropdown(**own["label"], label="class", elem_id="class")
        condition = gr.Number(**own["condition"], elem_id="condition")
        guidance = gr.Slider(0, requests.MAX_GUIDANCE, **own["guidance"], step=0.5, label="guidance",
                             elem_id="guidance")  # fmt: skip
        n = gr.Slider(**own["n"], label="samples", minimum=1, step=1, elem_id="n")
        seed = _seed("seed", "seed, the same for both")
    prompt = gr.Textbox(**own["prompt"], label="prompt: known letters, _ for each that is not", max_lines=1,
                        elem_id="prompt", placeholder="the ____ of the world")  # fmt: skip
    with gr.Accordion("Fill in the rest of a picture", **own["infilling"], open=False,
                      elem_id="infilling") as infilling, gr.Row():  # fmt: skip
        keep = gr.Dropdown(list(requests.KEEPS), **own["keep"], label="given part", elem_id="keep")
        picture = gr.Slider(0, **own["picture"], step=1, label="of test picture", elem_id="picture")
        strip = gr.HTML(**own["strip"], elem_classes="bfn-strip")
    panels = []
    with gr.Row(equal_height=False):
        for side, usual in zip("AB", USUAL, strict=True):
            with gr.Column():
                panels.append(_panel_widgets(side, usual, limits))
    run = _buttons("")
    gr.HTML(CONTROL, elem_id="bfn-control")
    with gr.Row(equal_height=True):
        left, right = (gr.HTML(EMPTY.format("drawing"), elem_id=f"panel-{side}", min_height=260) for side in "AB")

    fitted = {
        "n": n, "label": label, "condition": condition, "guidance": guidance, "prompt": prompt, "infilling": infilling,
        "keep": keep, "picture": picture, "strip": strip,
    }  # fmt: skip
    shared = {"model": model, "seed": seed, **fitted}
    settings = [*(shared[name] for name in SHARED), *chain(*panels)]
    event = run(_panel_drawer(models), settings, [left, right], "draw")
    event.success(None, js="() => { window.bfnFilm.play(); }")
    for_solver = [widgets[i] for widgets in panels for i in (0, 2)]
    model.change(_fitter(models), [model, *for_solver[::2]], [*fitted.values(), *for_solver], **AT_ONCE)
    for solver, _, dial, _ in panels:
        solver.change(_dial_shower(known), [model, solver], dial, **AT_ONCE)
    return [left, right]


def _options(models: Models, name: str) -> dict[str, dict[str, Any]]:
    """Return the options of the widgets that depend on the model, by the name of the widget."""
    limits = models.limits[name]
    choices = [("all in turn", "all"), ("none", "none"), *((name, str(k)) for k, name in enumerate(limits.classes))]
    number, low, high = limits.condition or ("condition", 0.0, 0.0)
    asked = f"{number}, {low:g} to {high:g}; empty for any"
    return {
        "n": {"maximum": requests.MAX_SAMPLES[limits.form], "value": requests.USUAL_SAMPLES[limits.form]},
        "label": {"choices": choices, "value": "all", "visible": bool(limits.classes)},
        "condition": {"value": None, "label": asked, "visible": limits.condition is not None},
        "guidance": {"value": 1, "visible": limits.has_conditions},
        "prompt": {"value": "", "visible": limits.is_text, "max_length": limits.length or 1},
        "infilling": {"visible": limits.n_pictures > 0},
        "keep": {"value": requests.KEEPS[0]},
        "picture": {"value": 0, "maximum": max(1, limits.n_pictures - 1)},
        "strip": {"value": models.strip(name)},
    }


def _panel_widgets(side: str, usual: str, limits: Limits) -> list[Any]:
    """Return the widgets of a panel, in the order of the fields of ``Panel``."""
    solver = gr.Dropdown(**_solver_options(limits, usual), label=f"solver {side}", elem_id=f"solver-{side}")
    with gr.Row():
        calls = gr.Slider(
            1, requests.MAX_CALLS, DEFAULT_CALLS, step=1, label="network calls", elem_id=f"calls-{side}", scale=2
        )
        dial = gr.Dropdown([*DIALS], value=OWN, label="dial g", visible=solvers.get(usual).has_dial, min_width=120,
                           elem_id=f"dial-{side}")  # fmt: skip
        start = gr.Dropdown([*STARTS], value=OWN, label="starts at t", min_width=120, elem_id=f"start-{side}")
    widgets = {"solver": solver, "calls": calls, "g": dial, "t_start": start}
    return [widgets[name] for name in EACH]


def _solver_options(limits: Limits, chosen: object) -> dict[str, Any]:
    choices = [(f"{name}: {solvers.get(name).summary}", name) for name in limits.solvers]
    return {"choices": choices, "value": chosen if chosen in limits.solvers else limits.solvers[0]}


def _fitter(models: Models) -> Callable[..., list[Any]]:
    known = models.limits

    def fit(model: object, *chosen: object) -> list[Any]:
        """Return updates of the widgets for a model. Choices that still fit are kept."""
        with errors_on_page():
            name = requests.choice({"model": model}, "model", known)
        limits = known[name]
        kept = [str(value if value in limits.solvers else usual) for value, usual in zip(chosen, USUAL, strict=True)]
        per_panel = ((gr.update(**_solver_options(limits, solver)), _dial_update(solver)) for solver in kept)
        return [*(gr.update(**own) for own in _options(models, name).values()), *chain(*per_panel)]

    return fit


def _dial_shower(known: Mapping[str, Limits]) -> Callable[[object, object], Any]:
    def show(model: object, solver: object) -> Any:
        """Return an update that shows the dial for solvers that have one."""
        with errors_on_page():
            limits = known[requests.choice({"model": model}, "model", known)]
            return _dial_update(requests.choice({"solver": solver}, "solver", limits.solvers))

    return show


def _dial_update(solver: str) -> Any:
    return gr.update(value=OWN, visible=solvers.get(solver).has_dial)


def _opener(models: Models) -> Callable[[], tuple[str, str]]:
    """Return the function that draws both panels for the initial settings, once for all visitors."""
    name = _first(models.limits)
    limits = models.limits[name]
    panel = {"calls": DEFAULT_CALLS, "g": OWN, "t_start": OWN}
    usual = {widget: own.get("value") for widget, own in _options(models, name).items()}
    given = {"model": name, "seed": 0, **usual}
    each = [{"solver": _solver_options(limits, solver)["value"], **panel} for solver in USUAL]
    values = [*(given[key] for key in SHARED), *(one[key] for one in each for key in EACH)]
    lock = threading.Lock()
    drawn: list[tuple[str, str]] = []

    def open_page() -> tuple[str, str]:
        with lock:
            if not drawn:
                *_, last = _panel_drawer(models)(*values)
                drawn.append(last)
        return drawn[0]

    return open_page


def _panel_drawer(models: Models) -> Callable[..., Generator[tuple[Any, Any], None, None]]:
    def draw(*values: object) -> Generator[tuple[Any, Any], None, None]:
        """Draw both panels, one after the other, from the same noise."""
        with errors_on_page():
            request = requests.read_draw(values, models.limits)
            model = models.by_name[request.model]
            for panel in request.panels:
                drawing.panel_request(panel).bind(model, request.n)
            conditions = models.conditions(request)
            shown = [EMPTY.format("waits for its turn")] * 2
            # Gradio can cancel a generator only after its first value.
            yield shown[0], shown[1]
            for side, panel in enumerate(request.panels):
                last = -LIVE
                for progress in drawing.draw(model, request, panel, conditions):
                    now = time.perf_counter()
                    if progress.finished:
                        shown[side] = drawing.film(progress)
                    elif now - last >= LIVE:
                        last = now
                        # The other panel is not sent again: its pictures may take a megabyte.
                        live = [gr.skip(), gr.skip()]
                        live[side] = drawing.film(progress)
                        yield live[0], live[1]
                if side == 0:
                    yield shown[0], gr.skip()
            yield shown[0], shown[1]

    return draw


def _mixtures_tab() -> None:
    offered = drawing.usable_solvers(next(iter(drawing.MIXTURES.values()))())
    gr.HTML(MIXTURE_NOTE)
    with gr.Row():
        mixture = gr.Dropdown(
            list(drawing.MIXTURES), value=next(iter(drawing.MIXTURES)), label="data", elem_id="mixture"
        )
        chosen = gr.Dropdown(
            list(offered), label="whose paths", multiselect=True,
            max_choices=requests.MAX_PATHS, value=["bfn", "bfn-solver1", "bfn-solver++2", "fast-ode"], scale=2,
            elem_id="whose",
        )  # fmt: skip
        calls = gr.Slider(2, 64, 8, step=1, label="network calls", elem_id="plane-calls")
        particles = gr.Slider(1, requests.MAX_PARTICLES, 40, step=1, label="particles", elem_id="particles")
        seed = _seed("plane-seed")
    run = _buttons("plane-")
    ways = gr.HTML(EMPTY.format("press Draw"), elem_id="ways")
    errors = gr.HTML("", elem_id="errors")
    run(_mixture_drawer(offered), [mixture, chosen, calls, particles, seed], [ways, errors], "plane")


def _mixture_drawer(offered: tuple[str, ...]) -> Callable[..., Generator[tuple[str, str], None, None]]:
    # The errors depend on no request, so they are measured once.
    measured: dict[str, str] = {}

    def draw(*values: object) -> Generator[tuple[str, str], None, None]:
        """Draw the paths, then the errors, which take seconds the first time."""
        with errors_on_page():
            request = requests.read_mixture(values, drawing.MIXTURES, offered)
            yield EMPTY.format("drawing"), ""
            model = drawing.MIXTURES[request.mixture]()
            by_solver = {}
            for name in request.solvers:
                by_solver[name] = drawing.mixture_paths(model, name, request.calls, request.particles, request.seed)
            paths = f'<div class="bfn-plot">{drawing.paths_picture(model, by_solver)}</div>'
            if request.mixture not in measured:
                total = len(drawing.groups(model))
                found = []
                yield paths, _measuring(0, total)
                for errors in drawing.errors(model):
                    found.append(errors)
                    yield paths, _measuring(len(found), total)
                measured[request.mixture] = drawing.error_curves(found, drawing.floor(model))
            yield paths, f'<div class="bfn-plot">{measured[request.mixture]}</div>'

    return draw


def _measuring(done: int, total: int) -> str:
    bar = f'<progress class="bfn-bar" value="{done}" max="{total}"></progress>'
    return f'<div class="bfn-note">measuring solver {done + 1} of {total}{bar}</div>'
