"""The models that the page offers, and pictures that samples can be grown around. Read once, then fixed."""

from __future__ import annotations

import base64
import html
import io
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import cos, pi, sin
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bfn
from bfn import data, solvers
from bfn.app.requests import KEEPS, DrawRequest, Limits, Panel
from bfn.core.errors import UserError
from bfn.core.model import BFN, Model
from bfn.core.sampling import Step, sample, undisturbed
from bfn.core.solver import Plan, plan
from bfn.core.table import Table
from bfn.data.loading import ImagePart, as_model_data, known_part, known_text
from bfn.exact.numbers import GaussianMixture
from bfn.quality.molecules import is_of_molecules, report_molecules
from bfn.storage import models as storage
from bfn.viz.pictures import Recorder, molecule_sheet, sheet
from bfn.viz.plots import colour, on

PICTURES = 20
PARTS: dict[str, ImagePart] = dict(zip(KEEPS[1:], ("top", "bottom", "left", "right", "border"), strict=True))
"""The library's names of the parts that the page offers to keep."""


@dataclass(frozen=True)
class Models:
    """Models by the names the page knows them by; known pictures, (n, *data_shape), of those that have some.

    tables: models of tables, whose rows have a tab of their own.
    """

    by_name: Mapping[str, BFN]
    pictures: Mapping[str, Tensor]
    tables: Mapping[str, BFN] = field(default_factory=dict)

    @cached_property
    def limits(self) -> dict[str, Limits]:
        """What requests are checked against."""
        return {name: self._limits(name, model) for name, model in self.by_name.items()}

    def _limits(self, name: str, model: BFN) -> Limits:
        return Limits(
            model.form,
            usable_solvers(model),
            model.info.classes.names if model.info.classes else (),
            _longest_prompt(model),
            len(self.pictures.get(name, ())),
            _number_condition(model),
        )

    def strip(self, name: str) -> str:
        """The known pictures of a model in a row."""
        if name not in self.pictures:
            return ""
        values = self.by_name[name].flow.values(self.pictures[name])
        return image(sheet(values, PICTURES // 2), "pictures to start from")

    def conditions(self, request: DrawRequest) -> dict[str, Any]:
        """Arguments of ``bfn.sample`` for what is known of the samples."""
        model = self.by_name[request.model]
        result: dict[str, Any] = {}
        own = _number_condition(model)
        if model.info.classes is not None:
            result["label"] = model.info.classes.in_turn(request.n) if request.label is None else request.label
        if own is not None and request.condition is not None:
            result["condition"] = {own[0]: request.condition}
        if request.guidance != 1 and (model.info.classes is not None or own is not None):
            result["guidance"] = request.guidance
        if model.info.lengths is not None and model.form == "text":
            # Drawn before the samples are, so that they can be shown without padding while they form.
            generator = torch.Generator().manual_seed(request.seed)
            result["lengths"] = model.info.lengths.draw(request.n, generator)
        if model.form == "text" and request.prompt:
            result |= known_text(model, request.prompt)
        if request.keep in PARTS:
            result |= known_part(model, self.pictures[request.model][request.picture], PARTS[request.keep])
        return result


def load_models(directories: Sequence[str] = ()) -> Models:
    """The bundled models and those in the given directories, which go by the directories' own names."""
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
    found = {name: _pictures(model) for name, model in models.items() if model.form == "images"}
    return Models(models, {name: pictures for name, pictures in found.items() if pictures is not None}, tables)


def _number_condition(model: BFN) -> tuple[str, float, float] | None:
    """The name and range of the one number that samples may be asked for by; None where there is none, or several."""
    found = [
        (name, own.low, own.high)
        for name, own in model.info.conditions.items()
        if not own.shape and own.low is not None and own.high is not None
    ]
    return found[0] if len(found) == 1 else None


def _longest_prompt(model: BFN) -> int:
    """How many characters a text of the model may have; 0 where it is not one of text."""
    tokenizer = model.info.text_tokenizer
    return 0 if tokenizer is None else model.data_shape[0] * max(map(len, tokenizer.pieces))


def _pictures(model: BFN) -> Tensor | None:
    """Test pictures of the standard set that a model was trained on, if this machine has it: nothing is fetched."""
    name = model.info.trained_on.get("name")
    if name not in data.names() or not data.is_at_hand(name):
        return None
    try:
        images = data.load(name, "test", progress=False)
        if not isinstance(images, data.Images) or images.data_shape != model.data_shape:
            return None
        return model.as_data(as_model_data(model, images[:PICTURES]))
    except (ImportError, OSError, UserError):
        return None


T = TypeVar("T")


class _StoppedError(Exception):
    """Nobody waits for the result any more."""


def watched(work: Callable[[Callable[[T], None]], None]) -> Generator[T, None, None]:
    """What ``work(tell)`` tells, as it tells it, from a thread of its own.

    Closing the generator stops the work at the next thing it tells. One that is left unclosed wastes no more than the
    rest of its work: nothing waits for the reader.
    """
    told: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def tell(what: T) -> None:
        if stopped.is_set():
            raise _StoppedError
        told.put((what,))

    def run() -> None:
        try:
            work(tell)
        except _StoppedError:
            pass
        except BaseException as error:
            told.put(error)
        else:
            told.put(None)

    threading.Thread(target=run, name="bfn-app-work", daemon=True).start()
    try:
        while (item := told.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()


@dataclass(frozen=True)
class PanelProgress:
    """A panel so far: how the samples formed, call by call; what it took; whether it is finished.

    plan: what it runs through. steps: (t, what is known, what is predicted) of each call made: mu and x_hat, or theta
    and class probabilities. conditions: what was asked for, lengths of the samples among it.
    """

    model: Model
    panel: Panel
    plan: Plan
    steps: tuple[tuple[float, Tensor, Tensor], ...]
    seconds: float
    finished: bool
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Tensor]:
        """The conditions that were asked for by name, one a sample."""
        n, given = len(self.steps[0][1]), self.conditions.get("condition", {})
        return {name: torch.full((n,), float(value)) for name, value in given.items()}

    @property
    def present(self) -> Tensor | None:
        """Where the samples have data, bool (n, longest); None where they have it everywhere."""
        lengths = self.conditions.get("lengths")
        return None if lengths is None else torch.arange(self.model.data_shape[0]) < lengths[:, None]


def panel_plan(model: Model, panel: Panel, conditions: Mapping[str, Any] | None = None) -> Plan:
    """What a panel runs through; a UserError where its settings make no sense together."""
    free = undisturbed(**(conditions or {}))
    return plan(model, panel.solver, panel.calls, t_start=panel.t_start, g=dial(panel), plain=free)


def usable_solvers(model: Model) -> tuple[str, ...]:
    """Names of the solvers that work with this model: some need what not every model has."""

    def works(name: str) -> bool:
        try:
            plan(model, name, 2)
        except UserError:
            return False
        return True

    return tuple(name for name in solvers.names(model.flow.kind) if works(name))


def dial(panel: Panel) -> float | None:
    """The dial that is asked for, where the solver has one: the page hides it elsewhere, but sends what it was."""
    return panel.g if solvers.get(panel.solver).has_dial else None


def draw(model: Model, request: DrawRequest, panel: Panel, conditions: Mapping[str, Any]) -> Iterator[PanelProgress]:
    """One panel's samples, its progress after each network call; each panel draws its noise from the same seed.

    conditions: further arguments of ``bfn.sample``, for what is known of the samples.
    """
    steps: list[tuple[float, Tensor, Tensor]] = []
    planned = panel_plan(model, panel, conditions)

    def work(tell: Callable[[bool], None]) -> None:
        record = Recorder(model, request.n, steps)

        def on_step(step: Step) -> None:
            record(step)
            tell(False)

        out = sample(model, request.n, planned.table, seed=request.seed, on_step=on_step, **conditions)
        # Where the sample is a mix of the last predictions, the last picture shows the mix.
        steps[-1] = (*steps[-1][:2], out.final.cpu())
        tell(True)

    start = time.perf_counter()
    for finished in watched(work):
        spent = time.perf_counter() - start
        yield PanelProgress(model, panel, planned, tuple(steps), spent, finished, conditions)


CALLS = (4, 6, 8, 12, 16, 24, 32)
PARTICLES = 600
DATA = 8 * PARTICLES
REFERENCE_CALLS = 120
DIRECTIONS = 24


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
    """Of one solver, or of several that do the same, at :data:`CALLS`; of_path is empty for solvers of the SDE."""

    names: tuple[str, ...]
    of_path: tuple[float, ...]
    of_distribution: tuple[float, ...]


def groups(model: GaussianMixture) -> list[tuple[str, ...]]:
    """Names of the solvers for data in the plane, those together whose tables are the same."""
    found: dict[tuple[Table, ...], list[str]] = {}
    for name in usable_solvers(model):
        found.setdefault(tuple(plan(model, name, calls).table for calls in CALLS), []).append(name)
    return [tuple(names) for names in found.values()]


def errors(model: GaussianMixture, seed: int = 0) -> Iterator[SolverErrors]:
    """Errors of each group of solvers, group by group."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn((PARTICLES, 2), generator=generator, dtype=model.dtype)
    goal = quantiles(model.sample_data(DATA, generator))
    truth: dict[float, Tensor] = {}
    for names in groups(model):
        of_path, of_distribution = [], []
        for calls in CALLS:
            rows = plan(model, names[0], calls).table
            # The first that this draws is the start: the same numbers for every solver, and none of them again.
            noise = torch.Generator().manual_seed(seed)
            ends = sample(model, PARTICLES, names[0], calls, generator=noise).x
            of_distribution.append(distance(ends, goal))
            if not any(row.c for row in rows.rows):
                first = rows.times[0]
                if first not in truth:
                    truth[first] = exact_ends(model, start, first)
                of_path.append(float((ends - truth[first]).square().sum(-1).mean().sqrt()))
        yield SolverErrors(names, tuple(of_path) if len(of_path) == len(CALLS) else (), tuple(of_distribution))


def exact_ends(model: GaussianMixture, start: Tensor, t_start: float) -> Tensor:
    """Where the ODE takes these starts, to an accuracy that no plotted solver reaches."""
    ends: Tensor = sample(model, len(start), "fast-ode", REFERENCE_CALLS, t_start=t_start, initial=start).x
    return ends


def floor(model: GaussianMixture, seed: int = 0) -> float:
    """The distance that 19 of 20 sets of data of the model itself stay below: no solver can be told to be better."""
    generator = torch.Generator().manual_seed(seed)
    goal = quantiles(model.sample_data(DATA, generator))
    drawn = sorted(distance(model.sample_data(PARTICLES, generator), goal) for _ in range(20))
    return drawn[-2]


def quantiles(x: Tensor) -> Tensor:
    """Of the projections of x (some PARTICLES, 2) on each direction, as many as there are particles."""
    return _projected(x).reshape(PARTICLES, -1, DIRECTIONS).mean(1)


def distance(x: Tensor, goal: Tensor) -> float:
    """Sliced Wasserstein-2 distance of the particles x from what these quantiles are of."""
    return float((_projected(x) - goal).square().mean().sqrt())


def _projected(x: Tensor) -> Tensor:
    angles = torch.arange(DIRECTIONS, dtype=x.dtype) * (pi / DIRECTIONS)
    return (x @ torch.stack([angles.cos(), angles.sin()])).sort(0).values


def mixture_paths(model: GaussianMixture, name: str, calls: int, particles: int, seed: int) -> Tensor:
    """The particles' paths by one solver, from starts that the seed alone decides: (calls + 1, particles, 2).

    They are taken in u / sqrt(1 + s^2), which is the noise at the start and the data at the end.
    """
    steps: list[Step] = []
    generator = torch.Generator().manual_seed(seed)
    ends = sample(model, particles, name, calls, generator=generator, on_step=steps.append).x
    levels = model.flow.schedule.s_of([step.t for step in steps])
    return torch.stack([step.u / (1 + s * s) ** 0.5 for step, s in zip(steps, levels, strict=True)] + [ends])


MAX_FRAMES = 48
"""Of a film; from longer runs as many calls are shown, evenly picked."""
SHADES = 10
"""Steps of opacity of a letter; the style sheet has a class for each."""
NAMES = {"continuous": "μ", "discrete": "θ"}


def film(progress: PanelProgress) -> str:
    """A panel: its frames if it is finished, else how far it is and the newest frame."""
    total = progress.panel.calls
    made = len(progress.steps)
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
    """The molecules that the samples stand for, drawn, and what is told of them; a line where RDKit is missing."""
    model, x = progress.model, progress.model.flow.decode(progress.steps[-1][2])
    try:
        report = report_molecules(model, x, progress.present, progress.asked)
        sheet = molecule_sheet(report.molecules.valid) if report.molecules.valid else None
    except ImportError as error:
        return f'<p class="bfn-note">not drawn, not judged: {html.escape(str(error))}</p>'
    told = "".join(f'<p class="bfn-note">{html.escape(line)}</p>' for line in report.lines())
    return (f'<div class="bfn-plot">{image(sheet, "molecules")}</div>' if sheet is not None else "") + told


def picked(made: int) -> list[int]:
    """Calls that a film shows: all, or that many evenly spread with the first and the last."""
    if made <= MAX_FRAMES:
        return list(range(made))
    return [round(i * (made - 1) / (MAX_FRAMES - 1)) for i in range(MAX_FRAMES)]


def _frame(progress: PanelProgress, index: int, total: int, last: bool = True) -> str:
    t, known, predicted = progress.steps[index]
    shown = _shower(progress.model, progress.present)
    name = NAMES[progress.model.flow.kind]
    return (
        f'<div class="bfn-frame{" on" if last else ""}">'
        f'<p class="bfn-when"><b>call {index + 1} of {total}</b><span>t = {t:.3f}</span></p>'
        f'<div class="bfn-pair bfn-{progress.model.form}">'
        f"<figure>{shown(predicted)}<figcaption>what the network predicts</figcaption></figure>"
        f"<figure>{shown(known)}<figcaption>what it is shown: {name}</figcaption></figure>"
        "</div></div>"
    )


def _shower(model: Model, present: Tensor | None) -> Callable[[Tensor], str]:
    """How values of this model, known or predicted, are shown; of text, what is present of it."""
    tokenizer = model.info.text_tokenizer
    if tokenizer is not None:
        return lambda values: letters(values, tokenizer.pieces, present)
    if model.form == "images":
        return lambda values: image(sheet(model.flow.expected_values(values)), "samples")
    return numbers


def letters(theta: Tensor, pieces: Sequence[str], present: Tensor | None = None) -> str:
    """Class probabilities (n, length, K) as lines of the likeliest pieces, the fainter the less they are known.

    present: bool (n, length), where there is a letter at all.
    """
    top, symbol = theta.max(-1)
    floor = 1 / theta.shape[-1]
    shade = ((top - floor) / (1 - floor)).clamp(0, 1).mul(SHADES - 1).round().int()
    there = torch.ones_like(symbol, dtype=torch.bool) if present is None else present
    rows = [_runs(k[mask].tolist(), s[mask].tolist(), pieces) for k, s, mask in zip(symbol, shade, there, strict=True)]
    return f'<div class="bfn-letters">{"".join(f"<p>{row}</p>" for row in rows)}</div>'


def _runs(symbols: Sequence[int], shades: Sequence[int], pieces: Sequence[str]) -> str:
    """Neighbours of the same shade share one element."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(symbols) + 1):
        if i == len(symbols) or shades[i] != shades[start]:
            run = html.escape("".join(pieces[k] for k in symbols[start:i]))
            parts.append(f'<i class="s{shades[start]}">{run}</i>')
            start = i
    return "".join(parts)


def numbers(values: Tensor) -> str:
    """Any other values as rows of numbers, the first few of each sample."""
    rows = [" ".join(f"{v:7.3f}" for v in row[:8]) for row in values.flatten(1).tolist()]
    return f"<pre>{html.escape(chr(10).join(rows))}</pre>"


def paths_picture(model: GaussianMixture, by_solver: Mapping[str, Tensor]) -> str:
    """The paths (calls + 1, particles, 2) of particles by each solver, side by side over the density of the data."""
    figure = Figure(figsize=(3.1 * len(by_solver), 3.3), layout="constrained", dpi=130)
    reach = 1.7
    line = torch.linspace(-reach, reach, 120, dtype=model.dtype)
    grid = torch.cartesian_prod(line, line)
    density = model.log_prob(grid).exp().reshape(120, 120).T.numpy()
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
    return image(_Drawn(figure), "paths of particles by " + ", ".join(by_solver))


def error_curves(found: Sequence[SolverErrors], floor: float) -> str:
    """Error against calls, log over log: of the path for the ODE's solvers, of the distribution for all."""
    figure = Figure(figsize=(11.5, 4.3), layout="constrained", dpi=120)
    left = on(figure.add_subplot(1, 2, 1), "distance from the exact path (ODE solvers)")
    right = on(figure.add_subplot(1, 2, 2), "distance from the distribution (all solvers)")
    right.axhspan(0, floor, color="#000000", alpha=0.06, linewidth=0)
    right.annotate(
        f"in the grey: not told from the data by {PARTICLES} samples", (0.01, 0.015), xycoords="axes fraction",
        fontsize=8, color="#666666",
    )  # fmt: skip
    counts = {True: 0, False: 0}
    for errors in found:
        ode = bool(errors.of_path)
        style: dict[str, Any] = {
            "color": colour(counts[ode]), "linestyle": "-" if ode else "--", "marker": "o" if ode else "s",
            "markersize": 3.5, "linewidth": 1.6, "label": " = ".join(errors.names),
        }  # fmt: skip
        counts[ode] += 1
        if ode:
            left.plot(CALLS, errors.of_path, **style)
        right.plot(CALLS, errors.of_distribution, **style)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="network calls", xticks=CALLS)
        axes.set_xticks(CALLS, labels=[str(calls) for calls in CALLS])
        axes.minorticks_off()
    left.set_ylabel("root mean square distance")
    right.set_ylabel("sliced Wasserstein distance")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return image(_Drawn(figure), "error against network calls for all solvers")


class _Drawn:
    """A figure that saves itself as Pillow's pictures do."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, file: io.BytesIO, format: str) -> None:
        self.figure.savefig(file, format=format, facecolor="white")


def image(picture: Any, alternative: str) -> str:
    """A Pillow image, or anything with ``save(file, format)``, as an element that carries its own PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
