"""Commands that measure a model on held-out data, and that fill missing cells of a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

import bfn
from bfn.cli import common, complain
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn._utils.estimate import Estimate
    from bfn.likelihood import Likelihood, Settings

SIXTEEN, THOUSAND = common.HeldOut(n=16), common.HeldOut(n=1000)

MANY_PASSES = 50_000
"""Number of backward passes beyond which a warning says how long they may take."""


def impute(
    model: common.ModelName,
    data: Annotated[Positional[Path], common.FILE],
    out: Annotated[Path | None, common.FILE] = None,
    draws: int | None = None,
    expected: bool = False,
    nfe: int | None = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    json: common.AsJson = False,
) -> None:
    """Fill the missing cells of a table.

    Missing cells are drawn given the other cells of their row, which stay as they are. With --draws, several tables are
    written, filled-1.csv, filled-2.csv, ...; the differences between them show how uncertain the filled cells are.

    Example: bfn impute runs/people people.csv --out filled.csv

    Example: bfn impute runs/people people.csv --expected

    Example: bfn impute runs/people people.parquet --draws 20 --out filled.parquet

    Args:
        data: a .csv, .tsv or .parquet file with the columns of the table that the model was trained on.
        out: .csv, .tsv or .parquet file; by default the name of the data with -filled.
        draws: number of tables to write, each drawn anew.
        expected: fill with the values of least expected error instead: numbers with their mean over 20 draws, or over
            --draws, and all others with the most probable level.
        nfe: network calls per row; 20 by default.
    """
    from bfn.data import read_table
    from bfn.tables.synthesizer import TableSynthesizer, check_row_file, write_rows

    common.check_positive(draws=draws, nfe=nfe)
    target = check_row_file(out or data.with_name(f"{data.name.partition('.')[0]}-filled{data.suffix}"))
    synthesizer = TableSynthesizer.of(common.load(model, device), model)
    rows = read_table(data)
    gaps = int(rows.reindex(columns=list(synthesizer.columns.names)).isna().sum().sum())
    options: dict[str, Any] = common.given_only(nfe=nfe)
    files = [target]
    if expected:
        options |= {"expected": True, "draws": draws}
    elif draws is not None:
        files = [target.with_name(f"{target.stem}-{draw + 1}{target.suffix}") for draw in range(draws)]
    for draw, path in enumerate(files):
        filled = synthesizer.impute(rows, seed=seed + draw, **options)
        write_rows(path, [filled], filled)
    values = {
        "model": model, "data": str(data), "rows": len(rows), "cells": gaps, "seed": seed, "files": [*map(str, files)],
    }  # fmt: skip
    how = " with the values of least expected error" if expected else f", {draws} times" if draws else ""
    common.tell(values, [f"{gaps} missing cells in {len(rows)} rows filled{how}; {common.written_to(files)}"], json)


def likelihood(
    model: common.ModelName,
    held_out: common.HeldOut = SIXTEEN,
    method: Literal["ode", "bound", "n-step"] = "ode",
    nfe: int | None = None,
    tolerance: float | None = None,
    divergence: Literal["exact", "hutchinson"] | None = None,
    probes: int = 1,
    importance: Annotated[int, arg(metavar="K")] = 1,
    levels: int | None = None,
    dequantise: Literal["uniform", "noise"] = "uniform",
    batch: int | None = None,
    out: Annotated[Path | None, common.DIRECTORY] = None,
    json: common.AsJson = False,
) -> None:
    """Measure the log-likelihood of held-out data, in nats per sample and bits per dimension (per character for text).

    The probability-flow ODE gives the density of continuous data, or a bound on the probability of discrete data and of
    grey levels (--levels). The other methods are the continuous-time bound (bound) and the bound of n steps (n-step);
    for continuous data the latter is also computed with the receiver's optimal variance, estimated on other samples.

    Example: bfn likelihood digits --n 32 --nfe 50

    On several GPUs or cores: torchrun --nproc_per_node 2 -m bfn -- likelihood digits --n 1000 --out figures

    Example: bfn likelihood mnist-binary --divergence hutchinson --probes 2 --importance 4

    Args:
        method: the probability-flow ODE, the continuous-time bound, or the bound of n steps.
        nfe: network calls per sample, 100 by default; with --tolerance, their maximum.
        tolerance: choose the steps so that log p has an error of about this many nats.
        divergence: exact takes one backward pass per dimension and call, hutchinson one per probe.
        probes: random vectors per trajectory, for hutchinson.
        importance: draws per sample that tighten a bound.
        levels: number of grey levels of continuous images, such as 256, for their probability instead of a density.
        dequantise: how draws fill a grey level: uniformly, or like the flow's own noise at the end of the data.
        batch: states that go through the network together; by default chosen by their size.
        out: directory for the figures of each batch, as .npz; if the command is stopped, the same command continues.
    """
    import torch

    from bfn._utils.pieces import Processes
    from bfn.likelihood import NFE, Settings
    from bfn.likelihood.bits import is_continuous
    from bfn.likelihood.bounds import receiver_variance
    from bfn.storage.models import identify

    common.check_positive(n=held_out.n, batch=batch)
    source = common.load(model, held_out.device, held_out.network)
    best_too = method == "n-step" and is_continuous(source.flow)
    read, others = held_out.read(source, json, 2 * held_out.n if best_too else held_out.n).split(held_out.n)
    if best_too and len(others.x) == 0:
        data = f"{read.source} ({read.part})"
        raise UserError(f"--n {held_out.n}: all of {data}; the best variance needs other samples, take fewer")

    options: dict[str, Any] = {
        "tolerance": tolerance, "divergence": divergence, "probes": probes, "importance": importance, "levels": levels,
        "dequantise": dequantise,
    }  # fmt: skip
    settings = Settings(method, nfe, **options)
    settings.check(source, read.x)
    _warn_of_passes(source, settings, len(read.x))
    options |= {**read.arguments(source), "batch": batch, "seed": held_out.seed, "processes": Processes.here()}
    options |= {"progress": common.shown(json), "keep": out}
    if out is not None:
        options["request"] = {"model": identify(source), "data": read.source, "part": read.part}
    results: dict[str, Likelihood] = {method: source.log_likelihood(read.x, method, nfe, **options)}
    if best_too:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        best = receiver_variance(source, others.x, (nfe or NFE) - 1, others.label, generator, batch)
        options |= {"variance": best, "keep": out and out / "best-variance"}
        results["n-step, best variance"] = source.log_likelihood(read.x, method, nfe, **options)
    values, headline = held_out.describe(model, source, read)
    lines = [headline]
    for name, result in results.items():
        lines += [f"{name}: {result}", f"  {'nats a sample':18}{result.nats}"]
        units = {"total": f" ({values['unit']})"}
        lines += [f"  {part:18}{estimate}{units.get(part, '')}" for part, estimate in result.parts.items()]
    common.tell({**values, "results": {name: result.asdict() for name, result in results.items()}}, lines, json)


def _warn_of_passes(model: bfn.BFN, settings: Settings, n: int) -> None:
    """Print a warning if n samples need many backward passes."""
    n_states, calls = math.prod(model.flow.state_shape(model.data_shape)), n * settings.calls
    if settings.method == "ode" and settings.is_exact(n_states) and calls * n_states > MANY_PASSES:
        complain(
            f"{n} samples, {settings.calls} calls, {n_states} dimensions: {calls * n_states:,} backward passes; "
            f"--divergence hutchinson takes {calls:,} and is unbiased"
        )


def evaluate(
    model: common.ModelName,
    held_out: common.HeldOut = THOUSAND,
    n_steps: common.Counts = (),
    train: Annotated[Path | None, common.FILE] = None,
    target: Annotated[str | None, common.NAME] = None,
    nfe: int | None = None,
    out: Annotated[Path | None, common.DIRECTORY] = None,
    batch: Annotated[int, common.BATCH] = 64,
    json: common.AsJson = False,
) -> None:
    """Measure the loss on held-out data, in bits per dimension (per character for text).

    The continuous-time loss (transmission) and the reconstruction loss at t = 1 are unbiased estimates, each with its
    95 % interval; their total is an upper bound on -log p. The loss of n steps is the length of a code that is sent in
    n messages; it falls with n.

    For a model of tables, measure the quality of its rows beside real rows and independent columns; --out writes
    report.html, report.md and report.json.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Example: bfn evaluate runs/people --data held-out.csv --train people.csv --n 10000 --out report

    Example: bfn evaluate mnist-binary --n-steps 10 25 100

    Args:
        n_steps: also measure the losses of these numbers of steps.
        train: for a table, the rows that the model was trained on; --data are then held-out rows.
        target: for a table, the column that is predicted from the others; the last one by default.
        nfe: for a table, network calls per row; 20 by default.
        out: for a table, directory of the report.
    """
    import torch

    from bfn.likelihood.bits import held_out_bits, is_continuous

    common.check_positive(n=held_out.n, batch=batch, n_steps=min(n_steps, default=None))
    source = common.load(model, held_out.device, held_out.network)
    of_tables = common.given_only(train=train, target=target, nfe=nfe, out=out)
    if common.is_table(source):
        _evaluate_table(model, source, held_out, json, **of_tables)
        return
    if of_tables:
        name, value = next(iter(of_tables.items()))
        raise UserError(f"--{name} {value}: only for models of tables; leave it out")
    read = held_out.read(source, json)

    def bits(steps: int | None) -> dict[str, Estimate]:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        settings: dict[str, Any] = {"n_steps": steps, "batch": batch, "generator": generator}
        return held_out_bits(source, read.x, **read.arguments(source), **settings, progress=common.shown(json))

    figures = {"": bits(None), **{f"{steps}-step ": bits(steps) for steps in n_steps}}
    values, headline = held_out.describe(model, source, read)
    first, *others = ({name: figure.asdict() for name, figure in parts.items()} for parts in figures.values())
    values |= {**first, "n_steps": dict(zip(map(str, n_steps), others, strict=True))}
    lines = [f"  {kind + name:24}{figure}" for kind, parts in figures.items() for name, figure in parts.items()]
    if is_continuous(source.flow) and not source.info.scaling:
        lines.append("  (of a density, in the units that the network sees; the reconstruction is the head's at t = 1)")
    common.tell(values, [headline, *lines], json)


def _evaluate_table(
    name: str, model: bfn.BFN, held_out: common.HeldOut, json: bool, train: Path | None = None,
    target: str | None = None, nfe: int | None = None, out: Path | None = None,
) -> None:  # fmt: skip
    """Draw rows, measure their quality, and write the report."""
    from bfn.quality.table_report import table_parts, table_report
    from bfn.tables.synthesizer import TableSynthesizer

    common.check_positive(nfe=nfe)
    if out is not None and out.is_file():
        raise UserError(f"--out {out}: is a file: expected a directory")
    training_rows, held_out_rows = table_parts(model, held_out.data, train)
    rows = TableSynthesizer.of(model, name).sample(held_out.n, seed=held_out.seed, **common.given_only(nfe=nfe))
    report = table_report(rows, training_rows, held_out_rows, target=target, name=name, seed=held_out.seed)
    written = [] if out is None else report.save(out)
    lines = [*report.lines(), "", common.table(*report.cells())]
    lines += [f"\n{common.written_to(written)}"] if written else []
    common.tell(report.asdict(), lines, json)
