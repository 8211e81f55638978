"""The command ``bfn sample``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

import bfn
from bfn.cli import common
from bfn.core.errors import UserError

if TYPE_CHECKING:
    import torch

    from bfn.core.samples import Samples
    from bfn.core.sampling import BoundRequest, Step
    from bfn.viz.pictures import Recorder


SHOWN = {"images": 16, "text": 4}
"""Number of samples in the animation of ``--steps-gif``, by the form of the data."""

OF_ROWS = ("solver", "nfe", "grid", "g", "t_start", "temperature", "noise", "particles")
"""Options of ``bfn.sample`` that apply to rows of a table."""


@dataclass(frozen=True)
class KnownData:
    """Data that samples keep or start from.

    Args:
        prompt: text at the beginning of the samples, with _ for each character to fill in.
        unknown: another sign for characters to fill in, if the text contains _.
        known: images of which a part is kept and the rest filled in: the test images of a standard data set, or a path.
            Which of them are used depends on the seed.
        keep: the part of the known images that is kept; the top half by default.
        start_from: data to start from, noised to the time --t-start: a standard data set or a path.
    """

    prompt: Annotated[str | None, arg(metavar="TEXT")] = None
    unknown: Annotated[str, arg(metavar="SIGN")] = "_"
    known: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None
    keep: Literal["top", "bottom", "left", "right", "border"] | None = None
    start_from: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None

    def check(self) -> None:
        """Raise a UserError if the options contradict each other."""
        if self.known is not None and self.prompt is not None:
            raise UserError(f"--known {self.known} with --prompt: one is for images, the other for text; leave one out")
        if self.known is None and self.keep is not None:
            raise UserError(f"--keep {self.keep} without --known: say what images to keep a part of")

    def options(self, model: bfn.BFN, n: int, seed: int, json: bool) -> dict[str, Any]:
        """Return the options ``known``, ``known_mask`` and ``start_from`` of ``bfn.sample`` for n samples."""
        import torch

        from bfn.data.loading import known_part, read_model_data

        def read(source: str) -> torch.Tensor:
            x = read_model_data(model, source, "test", n, seed=seed, progress=common.shown(json)).x
            return x[torch.arange(n) % len(x)]

        options: dict[str, Any] = {}
        if self.prompt is not None:
            length = model.data_shape[0]
            options["known"], options["known_mask"] = model.codec.prompt(self.prompt, length, self.unknown)
        if self.known is not None:
            options |= known_part(model, read(self.known), self.keep or "top")
        if self.start_from is not None:
            options["start_from"] = model.flow.unpack(read(self.start_from))
        return options


@dataclass(frozen=True)
class RowOptions:
    """Conditions on rows of a table.

    Args:
        given: for tables, a condition on every row: a cell, as country=FR (nothing after = for a missing value), or a
            range, as "age>40" or "country in FR, IT"; can be given several times.
        constraint: for tables, a rule that every row meets, as "start <= end" or "a + b == total"; can be given several
            times.
        tries: for tables, maximum number of drawn rows per requested row when conditions are met by rejection; 100 by
            default.
    """

    given: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="CONDITION")] = ()
    constraint: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="RULE")] = ()
    tries: int | None = None


NO_DATA, ANY_ROWS, USUAL = KnownData(), RowOptions(), common.SampleOptions()


def sample(
    model: common.ModelName,
    sampling: common.SampleOptions = USUAL,
    n: int = 16,
    seed: common.Seed = 0,
    out: Annotated[Path, arg(metavar="DIR_OR_FILE")] = Path("samples"),
    known_data: KnownData = NO_DATA,
    table: RowOptions = ANY_ROWS,
    steps_gif: bool = False,
    batch: Annotated[int, common.BATCH] = 256,
    per_file: int | None = None,
    autocast: Literal["bfloat16", "float16"] | None = None,
    network: common.Network = None,
    device: common.Device = "auto",
    json: common.AsJson = False,
) -> None:
    """Draw samples from a model and write them to files.

    Images are written as a PNG sheet and as .npz, text as lines, numbers and parts as .npz and, if they fit, as .csv.
    Molecules are also drawn and checked: how many are valid, unique and new, and which properties they have.

    Example: bfn sample mnist --solver bfn-solver++2 --nfe 10 --n 64 --seed 1 --out digits

    Example: bfn sample text8 --nfe 20 --steps-gif

    Example: bfn sample text8 --prompt "the ____ of the world"

    Example: bfn sample mnist --label 3 --guidance 2

    Example: bfn sample mnist --known mnist --keep left

    Example: bfn sample text8 --prompt "the ____ of the world" --particles 8 --nfe 5 --n 1

    Example: bfn sample qm9 --condition gap=0.25 --nfe 10 --out mols

    Many samples are written to numbered files while they are drawn, in constant memory. If the command is stopped, the
    same command continues. Several GPUs or cores give the same result:
    torchrun --nproc_per_node 2 -m bfn -- sample mnist --n 100000

    Example: bfn sample mnist --n 100000 --out many

    Example: bfn sample runs/people --n 1000 --given country=FR --given "age>40" --constraint "a<=b" --out rows.csv

    Args:
        n: number of samples.
        out: directory for the files; for a table also a .csv, .tsv or .parquet file.
        steps_gif: write an animation of the first samples while they form, steps.gif.
        per_file: maximum number of samples in a file; by default chosen by their size.
        autocast: type to run the network in.
    """
    import torch

    common.check_positive(n=n, batch=batch, per_file=per_file)
    known_data.check()
    if sampling.particles is not None and known_data == NO_DATA and table == ANY_ROWS:
        raise UserError(f"--particles {sampling.particles} without --prompt, --known or --given: say what must hold")
    source = common.load(model, device, network)
    if common.is_table(source):
        wrong = {name: value for name, value in sampling.given().items() if name not in OF_ROWS}
        common.refuse_given(
            "not for a table; its rows are asked for by --given column=value",
            {**wrong, **vars(known_data), "unknown": known_data.unknown != "_", "steps_gif": steps_gif},
        )
        _sample_rows(model, source, n, seed, out, table, sampling.given(), json)
        return
    _check(source, sampling, table, steps_gif)

    from bfn._utils.pieces import Processes
    from bfn.storage.sample_files import batch_size, draw_batches, pieces_for, sample_to
    from bfn.viz.pictures import Recorder

    request = sampling.request(n, **known_data.options(source, n, seed, json))
    bound, processes = request.bind(source, n), Processes.here()
    settings: dict[str, Any] = {
        "batch": batch, "seed": seed, "processes": processes, "progress": common.shown(json),
        "autocast": None if autocast is None else getattr(torch, autocast),
    }  # fmt: skip
    solver, nfe = " ".join(sampling.solver), bound.plan.table.nfe
    values = {"model": model, "solver": solver, "plan": str(bound.plan), "nfe": nfe, "n": n, "seed": seed}
    pieces = pieces_for(bound, out, batch, per_file)
    began = time.perf_counter()
    if len(pieces) > 1:
        if steps_gif:
            raise UserError(f"--steps-gif with {n} samples in {len(pieces)} files: draw fewer samples")
        files, _ = sample_to(source, out, n, request, per_file=pieces.size, **settings)
        seconds = time.perf_counter() - began
        values |= {"seconds": round(seconds, 3), "processes": processes.count, "files": [*map(str, files)]}
        line = f"{n} samples of {model}, seed {seed}: {seconds:.2f} s, in {files[0]} to {files[-1].name}"
        common.tell(values, [f"{solver} ran {bound.plan}", line], json)
        return
    recorder = Recorder(source, SHOWN[source.codec.form]) if steps_gif else None

    def on_step(step: Step) -> None:
        if recorder is not None and len(recorder.steps) < nfe:  # the first batch alone
            recorder(step)

    samples = draw_batches(bound, on_step=on_step, **settings)
    seconds, calls = time.perf_counter() - began, math.ceil(n / batch_size(bound, batch)) * nfe
    if processes.main:
        files, lines, found = _write(source, samples, bound, out, recorder)
        if "labels" in found and not sampling.label and not known_data.known:
            lines.append(f"classes drawn by their shares in the data: {' '.join(found['labels'])}")
        lines += [
            f"{solver} ran {bound.plan}",
            f"{n} samples of {model}: {seconds:.2f} s, {calls} network calls, {n / max(seconds, 1e-9):.1f} samples a "
            f"second, seed {seed}; {common.written_to(files)}",
        ]
        values |= {"calls": calls, "seconds": round(seconds, 3), "labels": None, "files": [*map(str, files)], **found}
        common.tell(values, lines, json)


def _check(model: bfn.BFN, options: common.SampleOptions, rows: RowOptions, steps_gif: bool) -> None:
    """Raise a UserError for options that do not apply to the model."""
    if rows != ANY_ROWS:
        raise UserError("--given, --constraint, --tries: this model has no columns; see --condition and --known")
    if options.label and model.info.classes is None:
        raise UserError(f"--label {options.label[0]}: this model knows no classes; leave it out")
    if steps_gif and model.codec.form not in SHOWN:
        raise UserError(f"--steps-gif: samples of shape {model.data_shape} are neither images nor text")


def _write(
    model: bfn.BFN, samples: Samples, bound: BoundRequest, out: Path, recorder: Recorder | None
) -> tuple[list[Path], list[str], dict[str, Any]]:
    """Write samples to files. Returns the files, and a description of the samples as lines and as values for JSON."""
    from bfn.quality import is_of_molecules
    from bfn.viz.pictures import write_animation

    classes, label = model.info.classes, samples.conditions.get("label")
    lines: list[str] = []
    values: dict[str, Any] = {}
    files = model.codec.write(out / "samples", samples.x, samples.present, label, classes.names if classes else ())
    if recorder is not None:
        recorder.present = samples.present
        files.append(write_animation(out / "steps.gif", recorder.frames()))
    if model.codec.form == "text":
        lines = model.codec.lines(samples.x, samples.present)
        values["text"] = [*lines]
    if is_of_molecules(model):
        drawings, report, values["molecules"] = _draw_molecules(out / "samples.png", model, samples)
        files, lines = [*files, *drawings], [*lines, *report]
    if samples.effective_sample_size is not None:
        size = samples.effective_sample_size.min(1).values.mean().item()
        values["effective_sample_size"] = round(size, 2)
        lines.append(
            f"effective number of the {bound.n_particles} particles, where it is lowest, on average: {size:.1f}"
        )
    if classes is not None and label is not None:
        values["labels"] = [classes.name(k) for k in label.tolist()]
    return files, lines, values


def _draw_molecules(path: Path, model: bfn.BFN, samples: Samples) -> tuple[list[Path], list[str], Any]:
    """Draw the valid molecules. Returns the files, and a report as lines and as values for JSON."""
    from bfn.quality import report_molecules
    from bfn.viz.pictures import molecule_sheet, write_picture

    try:
        report = report_molecules(model, samples.x, samples.present, samples.conditions)
        valid = report.molecules.valid
        captions = [""] * len(valid)
        for own in report.properties:
            captions = [f"{own.name} {value:.3f}" for value in own.estimated]
        files = [write_picture(path, molecule_sheet(valid, captions))] if valid else []
    except ImportError as error:  # RDKit is optional
        return [], [f"not drawn, not judged: {error}"], None
    return files, report.lines(), report.asdict()


def _sample_rows(
    name: str, model: bfn.BFN, n: int, seed: int, out: Path, rows: RowOptions, options: dict[str, Any], json: bool
) -> None:
    """Draw rows of a table, write them to a file and print how the conditions were met."""
    from bfn._utils.pieces import Processes
    from bfn._utils.progress import Progress
    from bfn.core.sampling import Request
    from bfn.tables.sampling import RowRequest, draw_rows
    from bfn.tables.synthesizer import TableSynthesizer, check_row_file, write_rows

    path = check_row_file(out if out.suffix else out / "samples.csv")
    request = RowRequest.read(TableSynthesizer.of(model, name).columns, rows.given, rows.constraint)
    report, wish = request.report(), Request.from_options(**options)
    tries = {} if rows.tries is None else {"tries": rows.tries}
    processes, began = Processes.here(), time.perf_counter()
    with Progress(n, "sampling", "row", common.shown(json)) as bar:

        def counted() -> Iterator[Any]:
            for drawn in draw_rows(model, n, request, report, wish, seed=seed, processes=processes, **tries):
                bar.update(len(drawn))
                yield drawn

        if processes.main:
            write_rows(path, counted(), request.example)
        else:
            all(True for _ in counted())  # the first process gets all rows and writes them
    seconds = time.perf_counter() - began
    values = {
        "model": name, "n": n, "seed": seed, "seconds": round(seconds, 3), "files": [str(path)],
        "conditions": report.asdict(),
    }  # fmt: skip
    rate = f"{n / max(seconds, 1e-9):.0f} rows a second"
    common.tell(
        values,
        [*report.lines(), f"{n} rows of {name}: {seconds:.2f} s, {rate}, seed {seed}; {common.written_to([path])}"],
        json,
    )
