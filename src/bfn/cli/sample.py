"""``bfn sample``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from bfn.cli.common import AsJson, Device, Loaded, ModelName, Seed, check_positive, load, print_json, progress_bar
from bfn.cli.held_out import held_out
from bfn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.sampling import Step

SHOWN = 16
"""Samples whose forming --steps-gif shows (4 where they are text)."""


def sample(
    model: ModelName,
    solver: Annotated[str, arg(metavar="NAME")] = "auto",
    nfe: int = 10,
    n: int = 16,
    seed: Seed = 0,
    out: Annotated[Path, arg(metavar="DIR")] = Path("samples"),
    g: Annotated[float | None, arg(metavar="NUMBER")] = None,
    grid: Annotated[str | None, arg(metavar="NAME")] = None,
    t_start: Annotated[float | None, arg(metavar="TIME")] = None,
    label: Annotated[tuple[int, ...], arg(metavar="K [K ...]")] = (),
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    prompt: Annotated[str | None, arg(metavar="TEXT")] = None,
    known: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    keep: Literal["top", "bottom", "left", "right"] | None = None,
    clip: bool = False,
    steps_gif: bool = False,
    batch: int = 256,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Draw samples: images as a PNG sheet and as .npz, text as lines.

    Example: bfn sample mnist --solver bfn-solver++2 --nfe 10 --n 64 --seed 1 --out digits

    Example: bfn sample text8 --nfe 20 --steps-gif

    Example: bfn sample text8 --prompt "the ____ of the world"

    Example: bfn sample mnist --label 3 --guidance 2 --clip

    Example: bfn sample mnist --known mnist --keep left

    Args:
        solver: its name; bfn solvers lists them.
        nfe: network calls to spend on each sample.
        n: how many samples.
        out: directory for the files.
        g: stochasticity from 0, the ODE, through 1, the reverse SDE, to inf; for solvers that have this dial.
        grid: where the calls are made: paper, uniform, log1p, log1p-early, power, log-snr, karras or information, some
            with numbers as power:1.5 or log1p:4:0.1; the solver's own if left out.
        t_start: where the grid starts, the paper's eta.
        label: classes to draw, in turn, -1 for none; without it a class-conditional model draws all in turn.
        guidance: how much the classes count, 1 as they are, 2 twice as much; each call then sees twice the batch.
        prompt: text that the samples begin with, _ for each character to fill in.
        known: images to keep a part of and fill in the rest: a standard set's test images, or a path, as bfn evaluate
            takes it; which of them is drawn by the seed.
        keep: the half of them that is kept, the top one if left out.
        clip: clip the predicted data to [-1, 1] at every step, as the paper's code does on images.
        steps_gif: write also how the first samples form, as steps.gif.
        batch: samples that are drawn at a time.
    """
    check_positive(n=n, batch=batch)
    if known is not None and prompt is not None:
        raise UserError(f"--known {known} with --prompt: one is for images, the other for text; leave one out")
    if known is None and keep is not None:
        raise UserError(f"--keep {keep} without --known: say what images to keep a half of")
    loaded = load(model, device)
    labels = _labels(loaded, label or ((-1,) if known and loaded.n_labels else ()), n)
    if guidance is not None and not loaded.n_labels:
        raise UserError(f"--guidance {guidance:g}: this model knows no classes; leave it out")
    given = _given(loaded, prompt, known, keep or "top", n, seed)
    settings: dict[str, Any] = {"grid": grid, "t_start": t_start, "g": g, "clip": (-1.0, 1.0) if clip else None}
    settings["guidance"] = guidance
    x, recorder, report = _draw(loaded, solver, nfe, n, seed, batch, labels, given, settings, steps_gif)
    files, lines = _write(loaded, x, labels, out)
    if recorder is not None:
        from bfn.viz.pictures import write_animation

        files.append(write_animation(out / "steps.gif", recorder.frames()))
    report = {"model": model, **report, "seed": seed, "files": [str(file) for file in files]}
    if json:
        return print_json({**report, "text": lines} if loaded.form == "text" else report)
    for line in lines:
        print(line)
    print(_sentence(report))
    return None


def _labels(loaded: Loaded, label: tuple[int, ...], n: int) -> Tensor | None:
    """(n,) classes: those given, in turn; all in turn where none are given to a class-conditional model."""
    import torch

    if label and not loaded.n_labels:
        raise UserError(f"--label {label[0]}: this model knows no classes; leave it out")
    foreign = [k for k in label if not -1 <= k < loaded.n_labels]
    if foreign:
        raise UserError(f"--label {foreign[0]}: expected a class from 0 to {loaded.n_labels - 1}, or -1 for none")
    turn = torch.tensor(label or range(loaded.n_labels), dtype=torch.int64)
    return turn.repeat(-(-n // len(turn)))[:n] if len(turn) else None


def _given(
    loaded: Loaded, prompt: str | None, known: str | None, keep: str, n: int, seed: int
) -> tuple[Tensor, Tensor] | None:
    """The known part of n samples, (n, *data_shape), and the mask that says where it is, (*data_shape); or None."""
    import torch

    shape = loaded.model.data_shape
    if prompt is not None:
        from bfn.data import Alphabet

        if loaded.alphabet is None:
            raise UserError(f"--prompt {prompt!r}: the model is one of {loaded.form}, not of text; leave it out")
        x, mask = Alphabet(loaded.alphabet).encode_prompt(prompt, shape[0])
        return x.expand(n, -1), mask
    if known is None:
        return None
    if loaded.form != "images":
        raise UserError(f"--known {known}: the model is one of {loaded.form}, not of images; leave it out")
    try:
        images, _ = held_out(loaded, known, "test", n, seed)
    except ValueError as error:
        raise UserError(str(error).replace("--data", "--known")) from None
    mask = torch.zeros(shape, dtype=torch.bool)
    rows, columns = shape[1] // 2, shape[2] // 2
    halves = {
        "top": (slice(rows), slice(None)),
        "bottom": (slice(rows, None), slice(None)),
        "left": (slice(None), slice(columns)),
        "right": (slice(None), slice(columns, None)),
    }
    mask[:, *halves[keep]] = True
    return images[torch.arange(n) % len(images)], mask


def _draw(
    loaded: Loaded,
    solver: str,
    nfe: int,
    n: int,
    seed: int,
    batch: int,
    labels: Tensor | None,
    given: tuple[Tensor, Tensor] | None,
    settings: Mapping[str, Any],
    record: bool,
) -> tuple[Tensor, Any, dict[str, Any]]:
    """The samples, how the first ones formed if that is asked for, and what it took."""
    import torch

    from bfn.sampling import batches
    from bfn.viz.pictures import Recorder

    model = loaded.model
    if record and loaded.form == "numbers":
        raise UserError(f"--steps-gif: samples of shape {model.data_shape} are neither images nor text")
    generator = torch.Generator(model.device).manual_seed(seed)
    keep = 4 if loaded.form == "text" else SHOWN
    recorder = Recorder(model.flow, keep, loaded.alphabet) if record else None
    sizes = list(batches(n, batch))
    pieces: list[Tensor] = []
    start = time.perf_counter()
    with progress_bar(len(sizes) * nfe, "sampling", "call") as bar:

        def on_step(step: Step) -> None:
            bar.update()
            if recorder is not None and not pieces:
                recorder(step)

        for size in sizes:
            first = sum(map(len, pieces))
            part = slice(first, first + size)
            label = None if labels is None else labels[part].to(model.device)
            known, mask = (None, None) if given is None else (given[0][part], given[1])
            drawn = model.sample(
                size, solver, nfe, label=label, known=known, mask=mask, generator=generator, on_step=on_step, **settings
            )
            pieces.append(drawn.x.cpu())
    report = {
        "solver": solver,
        "picked": _picked(loaded, solver, nfe, settings["grid"], settings["t_start"], settings["g"]),
        "nfe": nfe,
        "n": n,
        "calls": nfe * len(sizes),
        "seconds": round(time.perf_counter() - start, 3),
    }
    return torch.cat(pieces), recorder, report


def _picked(loaded: Loaded, solver: str, nfe: int, grid: str | None, t_start: float | None, g: float | None) -> str:
    """The solver that did the work."""
    from bfn import solvers
    from bfn.sampling import tuned_table

    if tuned_table(loaded.model.tables, solver, nfe, grid, t_start, g) is not None:
        return "tuned"
    return solvers.get(solver, loaded.model.flow.kind).resolve(loaded.model.flow, nfe).name


def _write(loaded: Loaded, x: Tensor, labels: Tensor | None, out: Path) -> tuple[list[Path], list[str]]:
    """Write the samples; the files, and lines to print."""
    import numpy as np

    from bfn.files import atomic
    from bfn.viz import pictures as render

    levels = loaded.levels
    files = [] if loaded.form == "numbers" else [render.write_sheet(out / "samples", x, loaded.alphabet, levels)]
    if loaded.form != "text":
        path = out / "samples.npz"
        with atomic(path) as temporary, temporary.open("wb") as file:
            if labels is None:
                np.savez(file, x=x.numpy())
            else:
                np.savez(file, x=x.numpy(), labels=labels.numpy())
        files.append(path)
    return files, render.lines(x, loaded.alphabet) if loaded.form == "text" else []


def _sentence(report: Mapping[str, Any]) -> str:
    picked = f" ({report['picked']})" if report["picked"] != report["solver"] else ""
    rate = report["n"] / max(report["seconds"], 1e-9)
    return (
        f"{report['n']} samples of {report['model']} by {report['solver']}{picked} with {report['nfe']} calls each: "
        f"{report['seconds']:.2f} s, {report['calls']} network calls, {rate:.1f} samples a second, "
        f"seed {report['seed']}; written to {', '.join(report['files'])}"
    )
