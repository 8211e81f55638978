"""Content of the page: samples of the models while they form, and solvers on exact models in the plane."""

from __future__ import annotations

import base64
import html
import io
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import cos, pi, sin
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bfn
from bfn import data, solvers
from bfn.app.requests import KEEPS, DrawRequest, Limits, Panel
from bfn.core.codec import sheet
from bfn.core.errors import UserError
from bfn.core.model import BFN, Model
from bfn.core.sampling import Request, Step, sample
from bfn.core.solver import Plan, plan
from bfn.core.table import Table
from bfn.data.loading import ImagePart, as_model_data, known_part
from bfn.exact.numbers import GaussianMixture
from bfn.quality import is_of_molecules, report_molecules
from bfn.storage import models as storage
from bfn.viz.pictures import Recorder, molecule_sheet
from bfn.viz.plots import colour, on

PICTURES = 20
"""Number of known pictures of a model."""
PARTS: dict[str, ImagePart] = dict(zip(KEEPS[1:], ("top", "bottom", "left", "right", "border"), strict=True))
"""Parts of a picture that the page offers to keep -> their names in the library."""
SHADES = 10
"""Number of opacities of a letter; the style sheet has a class for each."""
MAX_FRAMES = 48
"""Maximum number of frames of a film; of longer runs evenly spaced calls are shown."""
STATE_NAMES = {"continuous": "μ", "discrete": "θ"}

# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """The models that the page offers.

    Args:
        by_name: models by the names that the page shows.
        pictures: known pictures of image models, (n, *data_shape).
        tables: models of tables, whose rows have a tab of their own.
    """

    by_name: Mapping[str, BFN]
    pictures: Mapping[str, Tensor]
    tables: Mapping[str, BFN] = field(default_factory=dict)

    @cached_property
    def limits(self) -> dict[str, Limits]:
        """The requests that each model can serve."""
        return {
            name: Limits(
                model.codec.form, usable_solvers(model), model.info.classes.names if model.info.classes else (),
                _longest_prompt(model), len(self.pictures.get(name, ())), _number_condition(model),
            )
            for name, model in self.by_name.items()
        }  # fmt: skip

    def strip(self, name: str) -> str:
        """Return HTML with the known pictures of a model."""
        if name not in self.pictures:
            return ""
        values = self.by_name[name].flow.values(self.pictures[name])
        return image(sheet(values, PICTURES // 2), "pictures to start from")

    def conditions(self, request: DrawRequest) -> dict[str, Any]:
        """Return the options of ``bfn.sample`` for what is known of the samples."""
        model, number = self.by_name[request.model], self.limits[request.model].condition
        classes, lengths = model.info.classes, model.info.lengths
        options: dict[str, Any] = {}
        if classes is not None:
            options["label"] = classes.in_turn(request.n) if request.label is None else request.label
        if number is not None and request.condition is not None:
            options["condition"] = {number[0]: request.condition}
        if request.guidance != 1 and (classes is not None or number is not None):
            options["guidance"] = request.guidance
        if lengths is not None and model.codec.form == "text":
            # Drawn before the samples, so that these can be shown without padding while they form.
            options["lengths"] = lengths.draw(request.n, torch.Generator().manual_seed(request.seed))
        if request.prompt:
            known, mask = model.codec.prompt(request.prompt, model.data_shape[0])
            options |= {"known": known, "known_mask": mask}
        if request.keep in PARTS:
            options |= known_part(model, self.pictures[request.model][request.picture], PARTS[request.keep])
        return options


def load_models(directories: Sequence[str] = ()) -> Models:
    """Load the bundled models and those in the directories, which are named after their directory."""
    models = {name: bfn.load(name) for name in storage.bundled()}
    for directory in directories:
        name = Path(directory).resolve().name
        if name in models:
            raise UserError(f"--model {directory}: there is a model {name!r} already; give the directory another name")
        models[name] = bfn.load(directory)
    if not models:
        raise UserError("no models: none are bundled with this installation; name one with --model DIR")
    tables = {name: model for name, model in models.items() if model.info.columns is not None}
    models = {name: model for name, model in models.items() if name not in tables}
    pictures = {name: _pictures(model) for name, model in models.items()}
    return Models(models, {name: found for name, found in pictures.items() if found is not None}, tables)


def usable_solvers(model: Model) -> tuple[str, ...]:
    """Return the names of the solvers that work with a model."""

    def works(name: str) -> bool:
        try:
            plan(model, name, 2)
        except UserError:
            return False
        return True

    return tuple(name for name in solvers.names() if works(name))


def _number_condition(model: BFN) -> tuple[str, float, float] | None:
    """Return the name and the range of a model's only condition that is a number; None if there is not exactly one."""
    found = [
        (name, own.low, own.high)
        for name, own in model.info.conditions.items()
        if not own.shape and own.low is not None and own.high is not None
    ]
    return found[0] if len(found) == 1 else None


def _longest_prompt(model: BFN) -> int:
    """Return the maximum number of characters of a text; 0 for models of other data."""
    tokenizer = model.info.text_tokenizer
    return 0 if tokenizer is None else model.data_shape[0] * max(map(len, tokenizer.pieces))


def _pictures(model: BFN) -> Tensor | None:
    """Return test images of the data set that a model was trained on, if it is in the cache."""
    name = model.info.trained_on.get("name")
    if model.codec.form != "images" or name not in data.names() or not data.is_at_hand(name):
        return None
    try:
        images = data.load(name, "test", progress=False)
        if not isinstance(images, data.Images) or images.data_shape != model.data_shape:
            return None
        return model.as_data(as_model_data(model, images[:PICTURES]))
    except (ImportError, OSError, UserError):
        return None


# --- drawing ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class _StoppedError(Exception):
    """Raised in the working thread when nobody waits for the result any more."""


def watched(work: Callable[[Callable[[T], None]], None]) -> Generator[T, None, None]:
    """Run ``work(report)`` in a thread of its own and yield what it reports.

    Closing the generator stops the work at its next report. A generator that is left open costs no more than the rest
    of its work: the thread does not wait for the reader.
    """
    reports: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def report(value: T) -> None:
        if stopped.is_set():
            raise _StoppedError
        reports.put((value,))

    def run() -> None:
        try:
            work(report)
        except _StoppedError:
            pass
        except BaseException as error:
            reports.put(error)
        else:
            reports.put(None)

    threading.Thread(target=run, name="bfn-app-work", daemon=True).start()
    try:
        while (item := reports.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()


@dataclass(frozen=True)
class PanelProgress:
    """Progress of one panel.

    Args:
        model: the model.
        panel: its settings.
        plan: the plan of the solver.
        steps: for each network call the time, the network's input (mu or theta) and the prediction.
        seconds: time since the start.
        finished: whether all calls are made.
        conditions: options of ``bfn.sample`` that the samples were requested with.
    """

    model: Model
    panel: Panel
    plan: Plan
    steps: tuple[tuple[float, Tensor, Tensor], ...]
    seconds: float
    finished: bool
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def requested(self) -> dict[str, Tensor]:
        """The requested conditions by name, one value for each sample."""
        n, values = len(self.steps[0][1]), self.conditions.get("condition", {})
        return {name: torch.full((n,), float(value)) for name, value in values.items()}

    @property
    def present(self) -> Tensor | None:
        """Mask of the data of the samples, bool (n, longest); None if nothing is padded."""
        lengths = self.conditions.get("lengths")
        return None if lengths is None else torch.arange(self.model.data_shape[0]) < lengths[:, None]


def panel_request(panel: Panel, conditions: Mapping[str, Any] | None = None) -> Request:
    """Return the request of a panel. The dial is ignored for solvers without one: the page hides it but sends it."""
    g = panel.g if solvers.get(panel.solver).has_dial else None
    return Request.from_options(panel.solver, panel.calls, g=g, t_start=panel.t_start, **(conditions or {}))


def draw(model: Model, request: DrawRequest, panel: Panel, conditions: Mapping[str, Any]) -> Iterator[PanelProgress]:
    """Draw the samples of a panel and yield its progress after each network call.

    Args:
        model: the model.
        request: the request of the page; its seed makes the noise of both panels equal.
        panel: settings of the panel.
        conditions: further options of ``bfn.sample``.
    """
    steps: list[tuple[float, Tensor, Tensor]] = []
    wanted = panel_request(panel, conditions)
    planned = wanted.bind(model, request.n).plan

    def work(report: Callable[[bool], None]) -> None:
        record = Recorder(model, request.n, steps)

        def on_step(step: Step) -> None:
            record(step)
            report(False)

        out = sample(model, request.n, wanted, seed=request.seed, on_step=on_step)
        # Some solvers mix the last predictions into the sample: the last picture shows the mix.
        steps[-1] = (*steps[-1][:2], out.final.cpu())
        report(True)

    start = time.perf_counter()
    for finished in watched(work):
        spent = time.perf_counter() - start
        yield PanelProgress(model, panel, planned, tuple(steps), spent, finished, conditions)


# --- films of samples -------------------------------------------------------------------------------------------------


def film(progress: PanelProgress) -> str:
    """Return HTML of a panel: all frames if it is finished, else a progress bar and the newest frame."""
    total, made = progress.panel.calls, len(progress.steps)
    if not progress.finished:
        bar = f'<progress class="bfn-bar" value="{made}" max="{total}"></progress>'
        return f'<div class="bfn-panel">{bar}{_frame(progress, made - 1, total) if made else ""}</div>'
    frames = "".join(_frame(progress, i, total, last=i == made - 1) for i in picked(made))
    per_call = 1000 * progress.seconds / max(1, made)
    spent = (
        f'<p class="bfn-spent"><b>{made}</b> network calls in <b>{progress.seconds:.2f} s</b> '
        f"<span>{per_call:.0f} ms a call of {len(progress.steps[0][1])} samples</span></p>"
        f'<p class="bfn-plan">{html.escape(progress.panel.solver)} ran {html.escape(str(progress.plan))}</p>'
    )
    drawn = _molecules(progress) if is_of_molecules(progress.model) else ""
    return f'<div class="bfn-panel"><div class="bfn-film">{frames}</div>{drawn}{spent}</div>'


def _molecules(progress: PanelProgress) -> str:
    """Return HTML with drawings of molecules and a report on them; a line if RDKit is missing."""
    model, x = progress.model, progress.model.flow.decode(progress.steps[-1][2])
    try:
        report = report_molecules(model, x, progress.present, progress.requested)
        drawing = molecule_sheet(report.molecules.valid) if report.molecules.valid else None
    except ImportError as error:
        return notes([f"not drawn, not judged: {error}"])
    shown = "" if drawing is None else f'<div class="bfn-plot">{image(drawing, "molecules")}</div>'
    return shown + notes(report.lines())


def notes(lines: Sequence[str]) -> str:
    """Return HTML with one paragraph for each line."""
    return "".join(f'<p class="bfn-note">{html.escape(line)}</p>' for line in lines)


def picked(made: int) -> list[int]:
    """Return the calls that a film shows: all, or MAX_FRAMES evenly spaced ones with the first and the last."""
    if made <= MAX_FRAMES:
        return list(range(made))
    return [round(i * (made - 1) / (MAX_FRAMES - 1)) for i in range(MAX_FRAMES)]


def _frame(progress: PanelProgress, index: int, total: int, last: bool = True) -> str:
    """Return HTML of one network call: the prediction beside the network's input."""
    model, (t, state, predicted) = progress.model, progress.steps[index]
    name = STATE_NAMES[model.flow.parts[model.flow.leading_part].kind]
    return (
        f'<div class="bfn-frame{" on" if last else ""}">'
        f'<p class="bfn-when"><b>call {index + 1} of {total}</b><span>t = {t:.3f}</span></p>'
        f'<div class="bfn-pair bfn-{model.codec.form}">'
        f"<figure>{_shown(model, predicted, progress.present)}<figcaption>prediction</figcaption></figure>"
        f"<figure>{_shown(model, state, progress.present)}<figcaption>network input {name}</figcaption></figure>"
        "</div></div>"
    )


def _shown(model: Model, values: Tensor, present: Tensor | None) -> str:
    """Return HTML of predictions or network inputs: letters, an image, or numbers."""
    tokenizer = model.info.text_tokenizer
    if tokenizer is not None:
        return letters(values, tokenizer.pieces, present)
    picture = model.codec.picture(values)
    return numbers(values) if picture is None else image(picture, "samples")


def letters(theta: Tensor, pieces: Sequence[str], present: Tensor | None = None) -> str:
    """Return class probabilities as lines of the likeliest pieces, the fainter the less certain.

    Args:
        theta: probabilities, (n, length, K).
        pieces: text of each class.
        present: bool, (n, length), True where a text has data.
    """
    top, symbol = theta.max(-1)
    least = 1 / theta.shape[-1]
    shade = ((top - least) / (1 - least)).clamp(0, 1).mul(SHADES - 1).round().int()
    masks = torch.ones_like(symbol, dtype=torch.bool) if present is None else present
    rows = [_runs(k[mask].tolist(), s[mask].tolist(), pieces) for k, s, mask in zip(symbol, shade, masks, strict=True)]
    return f'<div class="bfn-letters">{"".join(f"<p>{row}</p>" for row in rows)}</div>'


def _runs(symbols: Sequence[int], shades: Sequence[int], pieces: Sequence[str]) -> str:
    """Return HTML of a text, with one element for neighbours of the same shade."""
    runs = groupby(zip(shades, symbols, strict=True), key=itemgetter(0))
    texts = ((shade, html.escape("".join(pieces[k] for _, k in run))) for shade, run in runs)
    return "".join(f'<i class="s{shade}">{text}</i>' for shade, text in texts)


def numbers(values: Tensor) -> str:
    """Return the first eight numbers of each sample as a line of text."""
    rows = [" ".join(f"{v:7.3f}" for v in row[:8]) for row in values.flatten(1).tolist()]
    return f"<pre>{html.escape(chr(10).join(rows))}</pre>"


def image(picture: Any, alternative: str) -> str:
    """Return an HTML image with its PNG data, of a Pillow image or a matplotlib figure."""
    buffer = io.BytesIO()
    write = picture.savefig if isinstance(picture, Figure) else picture.save
    write(buffer, format="PNG")
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(alternative)}" src="data:image/png;base64,{content}">'


# --- exact models in the plane ----------------------------------------------------------------------------------------

CALLS = (4, 6, 8, 12, 16, 24, 32)
"""Numbers of network calls at which errors are measured."""
PARTICLES = 600
DATA = 8 * PARTICLES
REFERENCE_CALLS = 120
DIRECTIONS = 24
"""Number of directions of the sliced Wasserstein distance."""


def _ring() -> GaussianMixture:
    angles = [2 * pi * k / 8 for k in range(8)]
    return GaussianMixture(torch.tensor([[cos(a), sin(a)] for a in angles]), stds=torch.full((8,), 0.08))


def _spiral() -> GaussianMixture:
    turns = [0.25 + 1.5 * k / 15 for k in range(16)]
    means = torch.tensor([[0.6 * r * cos(2 * pi * r), 0.6 * r * sin(2 * pi * r)] for r in turns])
    return GaussianMixture(means, stds=torch.full((16,), 0.06))


def _crossing() -> GaussianMixture:
    along = torch.tensor([[0.5, 0.46], [0.46, 0.5]])
    across = torch.tensor([[0.5, -0.46], [-0.46, 0.5]])
    return GaussianMixture(torch.zeros(2, 2), torch.stack([along, across]))


MIXTURES = {"eight on a ring": _ring, "a spiral": _spiral, "two that cross": _crossing}


@dataclass(frozen=True)
class SolverErrors:
    """Errors of a solver at ``CALLS``.

    Args:
        names: the solver, or several with the same tables.
        of_path: distances from the exact end points; empty for solvers of the SDE.
        of_distribution: distances from the data.
    """

    names: tuple[str, ...]
    of_path: tuple[float, ...]
    of_distribution: tuple[float, ...]


def groups(model: GaussianMixture) -> list[tuple[str, ...]]:
    """Return the names of the usable solvers; solvers with the same tables are in one group."""
    found: dict[tuple[Table, ...], list[str]] = {}
    for name in usable_solvers(model):
        found.setdefault(tuple(plan(model, name, calls).table for calls in CALLS), []).append(name)
    return [tuple(names) for names in found.values()]


def errors(model: GaussianMixture, seed: int = 0) -> Iterator[SolverErrors]:
    """Measure the errors of each group of solvers, one group after another."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn((PARTICLES, 2), generator=generator, dtype=model.dtype)
    goal = quantiles(model.sample_data(DATA, generator))
    exact: dict[float, Tensor] = {}
    for names in groups(model):
        of_path, of_distribution = [], []
        for calls in CALLS:
            table = plan(model, names[0], calls).table
            # With this seed every solver starts from ``start`` and draws independent noise after it.
            ends = sample(model, PARTICLES, names[0], calls, seed=seed).x
            of_distribution.append(distance(ends, goal))
            if not any(row.c for row in table.rows):
                first = table.times[0]
                if first not in exact:
                    exact[first] = sample(model, PARTICLES, "fast-ode", REFERENCE_CALLS, t_start=first, initial=start).x
                of_path.append(float((ends - exact[first]).square().sum(-1).mean().sqrt()))
        yield SolverErrors(names, tuple(of_path) if len(of_path) == len(CALLS) else (), tuple(of_distribution))


def floor(model: GaussianMixture, seed: int = 0) -> float:
    """Return the distance that 19 of 20 sets of exact samples stay below: smaller ones cannot be told from 0."""
    generator = torch.Generator().manual_seed(seed)
    goal = quantiles(model.sample_data(DATA, generator))
    return sorted(distance(model.sample_data(PARTICLES, generator), goal) for _ in range(20))[-2]


def quantiles(x: Tensor) -> Tensor:
    """Return PARTICLES quantiles of the projections of x, (k PARTICLES, 2), on each direction."""
    return _projected(x).reshape(PARTICLES, -1, DIRECTIONS).mean(1)


def distance(x: Tensor, goal: Tensor) -> float:
    """Return the sliced Wasserstein-2 distance of particles x from data with these quantiles."""
    return float((_projected(x) - goal).square().mean().sqrt())


def _projected(x: Tensor) -> Tensor:
    """Return the sorted projections of x on each direction."""
    angles = torch.arange(DIRECTIONS, dtype=x.dtype) * (pi / DIRECTIONS)
    return (x @ torch.stack([angles.cos(), angles.sin()])).sort(0).values


def mixture_paths(model: GaussianMixture, name: str, calls: int, particles: int, seed: int) -> Tensor:
    """Return the paths of particles by a solver, (calls + 1, particles, 2), from starts that depend on the seed.

    The paths are of u / sqrt(1 + s^2), which is the noise at the start and the data at the end.
    """
    steps: list[Step] = []
    ends = sample(model, particles, name, calls, seed=seed, on_step=steps.append).x
    levels = model.flow.schedule.s_of([step.t for step in steps])
    return torch.stack([step.u / (1 + s * s) ** 0.5 for step, s in zip(steps, levels, strict=True)] + [ends])


def paths_picture(model: GaussianMixture, by_solver: Mapping[str, Tensor]) -> str:
    """Return a picture of the paths of particles, (calls + 1, particles, 2), by each solver, over the data density."""
    figure = Figure(figsize=(3.1 * len(by_solver), 3.3), layout="constrained", dpi=130)
    reach = 1.7
    line = torch.linspace(-reach, reach, 120, dtype=model.dtype)
    density = model.log_prob(torch.cartesian_prod(line, line)).exp().reshape(120, 120).T.numpy()
    for i, (name, points) in enumerate(by_solver.items()):
        path = points.numpy()
        axes = on(figure.add_subplot(1, len(by_solver), i + 1), name)
        axes.imshow(density, extent=(-reach, reach, -reach, reach), origin="lower", cmap="Greys", alpha=0.55)
        axes.plot(path[..., 0], path[..., 1], color=colour(i), linewidth=0.9, alpha=0.55)
        axes.plot(path[:-1, :, 0], path[:-1, :, 1], ".", color=colour(i), markersize=2.2, alpha=0.5)
        (x0, y0), (x1, y1) = path[0].T, path[-1].T
        axes.scatter(x0, y0, s=9, facecolors="white", edgecolors="#777777", linewidths=0.6, zorder=3)
        axes.scatter(x1, y1, s=14, color=colour(i), edgecolors="white", linewidths=0.4, zorder=4)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return image(figure, "paths of particles by " + ", ".join(by_solver))


def error_curves(found: Sequence[SolverErrors], floor: float) -> str:
    """Return a log-log plot of error against calls: of the path for ODE solvers, of the distribution for all."""
    figure = Figure(figsize=(11.5, 4.3), layout="constrained", dpi=120)
    left = on(figure.add_subplot(1, 2, 1), "distance from the exact path (ODE solvers)")
    right = on(figure.add_subplot(1, 2, 2), "distance from the distribution (all solvers)")
    right.axhspan(0, floor, color="#000000", alpha=0.06, linewidth=0)
    note = f"grey: {PARTICLES} samples do not differ significantly from the data"
    right.annotate(note, (0.01, 0.015), xycoords="axes fraction", fontsize=8, color="#666666")
    counts = {True: 0, False: 0}
    for each in found:
        ode = bool(each.of_path)
        style: dict[str, Any] = {
            "color": colour(counts[ode]), "linestyle": "-" if ode else "--", "marker": "o" if ode else "s",
            "markersize": 3.5, "linewidth": 1.6, "label": " = ".join(each.names),
        }  # fmt: skip
        counts[ode] += 1
        if ode:
            left.plot(CALLS, each.of_path, **style)
        right.plot(CALLS, each.of_distribution, **style)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="network calls", xticks=CALLS)
        axes.set_xticks(CALLS, labels=[str(calls) for calls in CALLS])
        axes.minorticks_off()
    left.set_ylabel("root mean square distance")
    right.set_ylabel("sliced Wasserstein distance")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return image(figure, "error against network calls for all solvers")
