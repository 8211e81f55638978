"""Pictures for the page, as HTML that asks nothing of the server any more.

A film is a row of frames, one a network call, all sent at once: stepping through it is the browser's own affair, and
nothing has to be remembered here for anybody.
"""

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bfn.app.drawing import PanelProgress
from bfn.app.mixtures import CALLS, PARTICLES, SolverErrors
from bfn.exact import GaussianMixture
from bfn.model import Model
from bfn.quality.molecule_report import is_of_molecules, report_molecules
from bfn.viz import molecule_sheet, sheet
from bfn.viz.style import colour, on

__all__ = ["MAX_FRAMES", "error_curves", "film", "image", "letters", "numbers", "paths_picture", "picked"]

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
