"""Molecules for ``bfn sample``: a sheet of drawings, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from bfn._utils.pieces import Processes
from bfn._utils.progress import Progress
from bfn.cli.common import BATCH, NAME, AsJson, Device, ModelName, Network, Seed, check_positive, load, shown, tell
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.model import BFN
    from bfn.core.sampling import BatchedSamples


def tell_molecules(path: Path, model: BFN, drawn: BatchedSamples) -> tuple[list[Path], list[str], dict[str, Any]]:
    """Draw the valid ones beside their strings; files, lines for people, values for programs.

    Without RDKit the strings are all there is, and one line says what to install.
    """
    from bfn.quality.molecule_report import report_molecules
    from bfn.viz.pictures import molecule_sheet, write_picture

    try:
        report = report_molecules(model, drawn.x, drawn.present, drawn.conditions)
        files = []
        if report.molecules.valid:
            captions = [""] * len(report.molecules.valid)
            for own in report.properties:
                captions = [f"{own.name} {value:.3f}" for value in own.estimated]
            sheet = molecule_sheet(report.molecules.valid, captions)
            files.append(write_picture(path.with_suffix(".png"), sheet))
    except ImportError as error:
        return [], [f"not drawn, not judged: {error}"], {"molecules": None}
    return files, report.lines(), {"molecules": report.asdict()}


def sample_table(
    name: str, model: BFN, n: int, out: Path, given: tuple[str, ...], rules: tuple[str, ...], json: bool, **wishes: Any
) -> None:
    """Draw rows into a file, and tell how conditions were met. wishes: of ``draw_rows``; None for its own default."""
    from bfn.tables.sampling import RowRequest, draw_rows
    from bfn.tables.synthesizer import check_row_file, write_rows

    assert model.info.columns is not None
    path = check_row_file(out if out.suffix else out / "samples.csv")
    request = RowRequest.read(model.info.columns, given, rules)
    settings = {key: value for key, value in wishes.items() if value is not None}
    report = request.report(settings.get("particles"))
    processes = Processes.here()
    start = time.perf_counter()
    with Progress(n, "sampling", "row", shown(json)) as bar:

        def counted() -> Iterator[Any]:
            for rows in draw_rows(model, n, request, report, processes=processes, **settings):
                bar.update(len(rows))
                yield rows

        if processes.main:
            write_rows(path, counted(), request.example)
        else:
            all(True for _ in counted())  # its share is drawn; the first process has all rows and writes them
    seconds = time.perf_counter() - start
    values = {
        "model": name, "n": n, "seed": wishes["seed"], "seconds": round(seconds, 3), "files": [str(path)],
        "conditions": report.asdict(),
    }  # fmt: skip
    rate = f"{n / max(seconds, 1e-9):.0f} rows a second"
    line = f"{n} rows of {name}: {seconds:.2f} s, {rate}, seed {wishes['seed']}; written to {path}"
    tell(values, [*report.lines(), line], json)


SHOWN = {"images": 16, "text": 4}
"""Samples whose forming --steps-gif shows."""


def sample(
    model: ModelName,
    solver: Annotated[str, NAME] = "auto",
    nfe: int | None = None,
    n: int = 16,
    seed: Seed = 0,
    out: Annotated[Path, arg(metavar="DIR_OR_FILE")] = Path("samples"),
    g: Annotated[float | None, arg(metavar="NUMBER")] = None,
    grid: Annotated[str | None, NAME] = None,
    t_start: Annotated[float | None, arg(metavar="TIME")] = None,
    label: Annotated[tuple[str, ...], arg(metavar="CLASS [CLASS ...]")] = (),
    condition: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [NAME=VALUE ...]")] = (),
    guidance: Annotated[tuple[str, ...], arg(metavar="SCALE | NAME=SCALE [...]")] = (),
    length: int | None = None,
    temperature: Annotated[float, arg(metavar="NUMBER")] = 1.0,
    prompt: Annotated[str | None, arg(metavar="TEXT")] = None,
    unknown: Annotated[str, arg(metavar="SIGN")] = "_",
    known: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    keep: Literal["top", "bottom", "left", "right", "border"] | None = None,
    given: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="CONDITION")] = (),
    constraint: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="RULE")] = (),
    tries: int | None = None,
    particles: int | None = None,
    noise: Literal["fresh", "fixed"] = "fresh",
    clip: bool = True,
    steps_gif: bool = False,
    batch: Annotated[int, BATCH] = 256,
    per_file: int | None = None,
    network: Network = None,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Draw samples: images as a PNG sheet and as .npz, text as lines, numbers and parts as .npz and, if they fit, .csv.

    Molecules are drawn too, and judged: how many are valid, unique and new, and what their properties are.

    Example: bfn sample mnist --solver bfn-solver++2 --nfe 10 --n 64 --seed 1 --out digits

    Example: bfn sample text8 --nfe 20 --steps-gif

    Example: bfn sample text8 --prompt "the ____ of the world"

    Example: bfn sample mnist --label 3 --guidance 2

    Example: bfn sample mnist --known mnist --keep left

    Example: bfn sample text8 --prompt "the ____ of the world" --particles 16 --n 4

    Example: bfn sample qm9 --condition gap=0.25 --nfe 10 --out mols

    Many samples go to numbered files as they are drawn, in constant memory; after a kill the same command goes on.
    On several GPUs or cores, with the same result: torchrun --nproc_per_node 2 -m bfn -- sample mnist --n 100000

    Example: bfn sample mnist --n 100000 --out many

    Example: bfn sample runs/people --n 1000 --given country=FR --given "age>40" --constraint "a<=b" --out rows.csv

    Args:
        solver: its name; bfn solvers lists them.
        nfe: network calls to spend on each sample, 10 if left out, 20 for the rows of a table.
        n: how many samples.
        out: directory for the files; of a table also a .csv, .tsv or .parquet file.
        g: stochasticity from 0, the ODE, through 1, the reverse SDE, to inf; for solvers that have this dial.
        grid: where the calls are made: paper, uniform, log1p, log1p-early, power, log-snr, karras or information, some
            with numbers as power:1.5 or log1p:4:0.1; the solver's own if left out.
        t_start: where the grid starts, the paper's eta.
        label: classes to draw, in turn, by name or number, -1 for none; without it a class-conditional model draws them
            by their share in its training data, or none for known images.
        condition: what else the network is to be told, by name: a number, or the name of a class.
        guidance: how much the conditions count, 1 as they are, 2 twice as much; for all, or by name as gap=2; each call
            then sees twice the batch.
        length: of the samples, for a model of sequences of different lengths; drawn from its data's if left out.
        temperature: for text and other classes, below 1 for surer samples, above 1 for more diverse ones.
        prompt: text that the samples begin with, _ for each character to fill in.
        unknown: another sign for those, where the text itself has _.
        known: images to keep a part of and fill in the rest: a standard set's test images, or a path, as bfn evaluate
            takes it; which of them is drawn by the seed.
        keep: the part of them that is kept, the top half if left out.
        given: for tables, cells that all rows have, as country=FR (nothing after = for a missing one), ranges as
            "age>40" or "country in FR, IT"; may be given several times.
        constraint: for tables, a rule that all rows meet, as "start <= end" or "a + b == total"; several times.
        tries: for tables, rows that are drawn at most for each that is asked for, where conditions are met by drawing
            again; 100 if left out.
        particles: draw each sample from so many, weighed so that samples follow the model's own distribution given
            --prompt, --known or --given; takes that many times as long. auto is then fast-sde with g = 1.
        noise: fixed for the noise of the first state at every step, so that a seed gives about the same sample whatever
            --nfe is; that is another distribution than the model's.
        clip: do not clip the predicted data to the data's range, as the paper's code does on images.
        steps_gif: write also how the first samples form, as steps.gif.
        per_file: samples in a file, where there are more of them than that; by their size if left out.
    """
    check_positive(n=n, batch=batch, per_file=per_file)
    if known is not None and prompt is not None:
        raise UserError(f"--known {known} with --prompt: one is for images, the other for text; leave one out")
    if particles is not None and known is None and prompt is None and not given and not constraint:
        raise UserError(f"--particles {particles} without --prompt, --known or --given: say what must hold")
    if known is None and keep is not None:
        raise UserError(f"--keep {keep} without --known: say what images to keep a part of")

    from bfn.core.sampling import block_size, sample_in_batches

    pass  # MOVED
    from bfn._utils.pieces import Processes
    from bfn.quality.molecule_report import is_of_molecules
    from bfn.storage.sample_files import pieces_for, sample_to, write_files
    from bfn.viz.pictures import Recorder, lines, write_animation

    source = load(model, device, network)
    if source.info.columns is not None:
        refused = {"--label": label, "--condition": condition, "--guidance": guidance, "--prompt": prompt,
                   "--known": known, "--length": length, "--steps-gif": steps_gif}  # fmt: skip
        wrong = next((option for option, value in refused.items() if value), None)
        if wrong is not None:
            raise UserError(f"{wrong}: not for a table; its rows are asked for by --given column=value")
        pass  # MOVED

        asked_for = {"solver": solver, "grid": grid, "t_start": t_start, "g": g, "temperature": temperature}
        if noise != "fresh":
            asked_for["noise"] = noise
        sample_table(
            model, source, n, out, given, constraint, json, nfe=nfe, seed=seed, tries=tries, particles=particles,
            **asked_for,
        )  # fmt: skip
        return
    if given or constraint or tries is not None:
        raise UserError("--given, --constraint, --tries: this model has no columns; see --condition and --known")
    nfe = 10 if nfe is None else nfe
    form, classes = source.form, source.info.classes
    if label and classes is None:
        raise UserError(f"--label {label[0]}: this model knows no classes; leave it out")
    if steps_gif and form not in SHOWN:
        raise UserError(f"--steps-gif: samples of shape {source.data_shape} are neither images nor text")
    processes = Processes.here()
    settings: dict[str, Any] = {
        "grid": grid, "t_start": t_start, "g": g, "guidance": scales(guidance), "clip": None if clip else False,
        "condition": asked(condition), "temperature": temperature, "lengths": length, "particles": particles,
        "noise": noise,
    }  # fmt: skip
    given_of = _given(source, label, (prompt, unknown), known, keep or "top", n, seed, json)
    pieces = pieces_for(source, out, n, block_size(batch, particles), per_file)
    if len(pieces) > 1:
        if steps_gif:
            raise UserError(f"--steps-gif with {n} samples in {len(pieces)} files: draw a few for it")
        began = time.perf_counter()
        request = {"label": label, "prompt": (prompt, unknown), "known": known, "keep": keep}
        files, planned = sample_to(
            source, out, n, solver, nfe, batch=batch, per_file=pieces.size, seed=seed, given=given_of, request=request,
            processes=processes, progress=shown(json), **settings,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        values = {
            "model": model, "solver": solver, "plan": str(planned), "nfe": nfe, "n": n, "seed": seed,
            "seconds": round(seconds, 3), "processes": processes.count, "files": [*map(str, files)],
        }  # fmt: skip
        line = f"{n} samples of {model}, seed {seed}: {seconds:.2f} s, in {files[0]} to {files[-1].name}"
        tell(values, [f"{solver} ran {planned}", line], json)
        return
    recorder = Recorder(source, SHOWN[form]) if steps_gif else None
    drawn = sample_in_batches(
        source, n, solver, nfe, batch=batch, seed=seed, progress=shown(json), processes=processes,
        on_step=lambda step: recorder(step) if recorder and len(recorder.steps) < nfe else None,
        **settings, **given_of(range(n)),
    )  # fmt: skip
    if not processes.main:
        return
    files = write_files(out / "samples", source, drawn.x, drawn.label, drawn.present)
    if recorder is not None:
        recorder.present = drawn.present
        files.append(write_animation(out / "steps.gif", recorder.frames()))
    told = lines(source, drawn.x, drawn.present) if form == "text" else []
    values = {
        "model": model, "solver": solver, "plan": str(drawn.plan), "nfe": nfe, "n": n, "calls": drawn.calls,
        "seconds": round(drawn.seconds, 3), "seed": seed, "labels": None, "files": [*map(str, files)],
        **({"text": [*told]} if told else {}),
    }  # fmt: skip
    if is_of_molecules(source):
        drawings, judged, found = tell_molecules(out / "samples", source, drawn)
        files, told, values = [*files, *drawings], [*told, *judged], {**values, **found}
        values["files"] = [*map(str, files)]
    if drawn.effective_sample_size is not None:
        size = drawn.effective_sample_size.min(1).values.mean().item()
        values["effective_sample_size"] = round(size, 2)
        told.append(f"of {particles} particles a sample {size:.1f} counted where fewest did, on average")
    if classes is not None and drawn.label is not None:
        values["labels"] = names = [classes.name(k) for k in drawn.label.tolist()]
        told += [] if label or known else [f"classes drawn by their shares in the data: {' '.join(names)}"]
    told.append(f"{solver} ran {drawn.plan}")
    told.append(
        f"{n} samples of {model}: {drawn.seconds:.2f} s, {drawn.calls} network calls, "
        f"{n / max(drawn.seconds, 1e-9):.1f} samples a second, seed {seed}; written to {', '.join(map(str, files))}"
    )
    tell(values, told, json)


def _given(
    model: BFN,
    label: tuple[str, ...],
    prompt: tuple[str | None, str],
    known: str | None,
    keep: Any,
    n: int,
    seed: int,
    json: bool,
) -> Callable[[range], dict[str, Any]]:
    """What is asked for of samples by their numbers: classes in turn, a prompt, a part of images in turn."""
    import torch

    from bfn.data.encoding import known_part, known_text, read_model_data

    text, unknown = prompt
    always = {} if text is None else known_text(model, text, unknown)
    images = None
    if known is not None:
        images = read_model_data(model, known, "test", n, seed=seed, progress=shown(json)).x

    def of(rows: range) -> dict[str, Any]:
        own = {**always, "label": [label[i % len(label)] for i in rows] if label else None}
        if images is not None:
            own |= known_part(model, images[torch.tensor(rows) % len(images)], keep)
        return own

    return of


def asked(given: tuple[str, ...]) -> dict[str, Any] | None:
    """Conditions by name from NAME=VALUE; a value is a number, several with commas between, or the name of a class."""
    return {name: _value(value) for name, value in (_pair("condition", one) for one in given)} or None


def scales(given: tuple[str, ...]) -> float | dict[str, float] | None:
    """A scale for all conditions, or some by name, from SCALE or NAME=SCALE."""
    if len(given) == 1 and "=" not in given[0]:
        return _scale(given[0])
    return {name: _scale(value) for name, value in (_pair("guidance", one) for one in given)} or None


def _pair(option: str, given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals and value):
        raise UserError(f"--{option} {given}: expected NAME=VALUE, such as gap=0.25")
    return name, value


def _value(value: str) -> Any:
    try:
        numbers = [int(one) if one.lstrip("+-").isdecimal() else float(one) for one in value.split(",")]
    except ValueError:
        return value
    return numbers if len(numbers) > 1 else numbers[0]


def _scale(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UserError(f"--guidance {value}: expected a scale, such as 2, or NAME=SCALE") from None
