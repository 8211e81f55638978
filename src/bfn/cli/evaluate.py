"""``bfn impute``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from bfn._utils.pieces import Processes
from bfn.cli.common import (
    BATCH,
    DIRECTORY,
    FILE,
    NAME,
    AsJson,
    Counts,
    Device,
    HeldOut,
    ModelName,
    Seed,
    check_positive,
    load,
    shown,
    table,
    tell,
)
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn._utils.estimate import Estimate
    from bfn.core.model import BFN
    from bfn.likelihood.bits import Likelihood


def impute(
    model: ModelName,
    data: Annotated[Positional[Path], FILE],
    out: Annotated[Path | None, FILE] = None,
    draws: int | None = None,
    expected: bool = False,
    nfe: int | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Fill the missing cells of a table: each is drawn given the other cells of its row, which stay as they are.

    With --draws, so many tables, filled-1.csv, filled-2.csv, ...: what differs between them is what is not known.

    Example: bfn impute runs/people people.csv --out filled.csv

    Example: bfn impute runs/people people.csv --expected

    Example: bfn impute runs/people people.parquet --draws 20 --out filled.parquet

    Args:
        data: a .csv, .tsv or .parquet file with the columns of the table that the model was trained on.
        out: .csv, .tsv or .parquet; the data's name with -filled if left out.
        draws: how many tables to write, each drawn anew.
        expected: fill by what errs least instead: numbers by their mean, over 20 draws or as many as --draws says, all
            else by the most probable level.
        nfe: network calls to spend on each row, 20 if left out.
    """
    from bfn.data.table_files import read_table
    from bfn.tables.synthesizer import TableSynthesizer, check_row_file, write_rows

    check_positive(draws=draws, nfe=nfe)
    target = check_row_file(out or data.with_name(f"{data.name.partition('.')[0]}-filled{data.suffix}"))
    synthesizer = TableSynthesizer.of(load(model, device), model)
    table = read_table(data)
    gaps = int(table.reindex(columns=list(synthesizer.columns.names)).isna().sum().sum())
    calls: dict[str, Any] = {} if nfe is None else {"nfe": nfe}
    files = []
    several = None if expected else draws
    for draw in range(several or 1):
        wish: dict[str, Any] = {"expected": True, "draws": draws} if expected else {}
        filled = synthesizer.impute(table, seed=seed + draw, **calls, **wish)
        path = target if several is None else target.with_name(f"{target.stem}-{draw + 1}{target.suffix}")
        write_rows(path, [filled], filled)
        files.append(str(path))
    values = {"model": model, "data": str(data), "rows": len(table), "cells": gaps, "seed": seed, "files": files}
    drawn = ", by what errs least" if expected else f", {draws} times" if draws else ""
    tell(values, [f"{gaps} missing cells in {len(table)} rows filled{drawn}; written to {', '.join(files)}"], json)


MANY_PASSES = 50_000
"""Backward passes beyond which it is said how long this may take."""


def likelihood(
    model: ModelName,
    held_out: HeldOut = HeldOut(n=16),
    method: Literal["ode", "bound", "n-step"] = "ode",
    nfe: int | None = None,
    tolerance: float | None = None,
    divergence: Literal["exact", "hutchinson"] | None = None,
    probes: int = 1,
    importance: Annotated[int, arg(metavar="K")] = 1,
    levels: int | None = None,
    dequantise: Literal["uniform", "noise"] = "uniform",
    batch: int | None = None,
    out: Annotated[Path | None, DIRECTORY] = None,
    json: AsJson = False,
) -> None:
    """Measure how likely a model holds held-out data to be: nats a sample, bits a dimension (a character, for text).

    By the probability-flow ODE: the density of continuous data, or a bound on the probability of discrete data and of
    grey levels (--levels). Or by the continuous-time bound (bound), or the bound of n steps (n-step), for continuous
    data also with the best variance of the receiver, taken from as many other samples.

    Example: bfn likelihood digits --n 32 --nfe 50

    On several GPUs or cores: torchrun --nproc_per_node 2 -m bfn -- likelihood digits --n 1000 --out figures

    Example: bfn likelihood mnist-binary --divergence hutchinson --probes 2 --importance 4

    Args:
        method: the probability-flow ODE, the continuous-time bound, or the bound of n steps.
        nfe: network calls a sample, 100 if left out; with --tolerance, the most that one may take.
        tolerance: take steps as small as an error of log p of about so many nats asks for.
        divergence: exact takes a backward pass a dimension at each call, hutchinson one a probe.
        probes: random vectors a trajectory, for hutchinson.
        importance: draws a sample over which a bound is tightened.
        levels: grey levels of continuous images, such as 256: the probability of those instead of a density.
        dequantise: how draws fill a grey level: evenly, or as the flow's own noise at the data end does.
        batch: states that go through the network at a time; chosen by their size if left out.
        out: keep the figures of each batch there, as .npz: the same command goes on after a kill.
    """
    import math
    import sys

    import torch

    from bfn.likelihood.bounds import receiver_variance
    from bfn.likelihood import NFE, Settings
    from bfn.storage.models import identify

    check_positive(n=held_out.n, batch=batch)
    source = load(model, held_out.device, held_out.network)
    best_too = method == "n-step" and source.flow.has_range
    everything = held_out.read(source, json, 2 * held_out.n if best_too else held_out.n)
    read, others = everything.split(held_out.n)
    if best_too and len(others.x) == 0:
        where = f"{read.source} ({read.part})"
        raise UserError(f"--n {held_out.n}: all of {where}; the best variance needs other samples, take fewer")

    settings = Settings(method, nfe, tolerance, divergence, probes, importance, levels, dequantise, None)
    settings.check(source, read.x)
    n_states = math.prod(source.flow.state_shape(source.data_shape))
    calls = len(read.x) * settings.calls
    if method == "ode" and settings.is_exact(n_states) and calls * n_states > MANY_PASSES:
        print(
            f"bfn: {len(read.x)} samples, {settings.calls} calls, {n_states} dimensions: {calls * n_states:,} backward "
            f"passes; --divergence hutchinson takes {calls:,} and is right on average",
            file=sys.stderr,
        )
    processes = Processes.here()
    request = {} if out is None else {"model": identify(source), "data": read.source, "part": read.part}

    def measured(**settings: Any) -> Likelihood:
        return source.log_likelihood(
            read.x, method, nfe, tolerance=tolerance, divergence=divergence, probes=probes, importance=importance,
            levels=levels, dequantise=dequantise, **read.arguments(source), batch=batch, progress=shown(json),
            seed=held_out.seed, processes=processes, request=request, **settings,
        )  # fmt: skip

    results: dict[str, Likelihood] = {method: measured(keep=out)}
    if best_too:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        best = receiver_variance(source, others.x, (nfe or NFE) - 1, others.label, generator, batch)
        again = None if out is None else out / "best-variance"
        results["n-step, best variance"] = measured(variance=best, keep=again)
    values, headline = held_out.told(model, source, read)
    lines = [headline]
    for name, result in results.items():
        lines += [f"{name}: {result}", f"  {'nats a sample':18}{result.nats}"]
        units = {"total": f" ({values['unit']})"}
        lines += [f"  {part:18}{estimate}{units.get(part, '')}" for part, estimate in result.parts.items()]
    tell({**values, "results": {name: result.asdict() for name, result in results.items()}}, lines, json)


def evaluate(
    model: ModelName,
    held_out: HeldOut = HeldOut(n=1000),
    n_steps: Counts = (),
    train: Annotated[Path | None, FILE] = None,
    target: Annotated[str | None, NAME] = None,
    nfe: int | None = None,
    out: Annotated[Path | None, DIRECTORY] = None,
    batch: Annotated[int, BATCH] = 64,
    json: AsJson = False,
) -> None:
    """Measure the bits a dimension (a character, for text) of held-out data: transmission and reconstruction.

    The continuous-time loss and the reconstruction at t = 1 are unbiased estimates, each with its 95 % interval; their
    total bounds -log p from above. The loss of n steps is that of a code sent in so many pieces, and higher the fewer
    they are.

    Of a model of tables: how good its rows are, beside real rows and independent columns; --out writes report.html,
    report.md and report.json there.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Example: bfn evaluate runs/people --data held-out.csv --train people.csv --n 10000 --out report

    Example: bfn evaluate mnist-binary --n-steps 10 25 100

    Args:
        n_steps: measure also the losses of these numbers of steps.
        train: of a table, the rows that the model was trained on; --data are rows that it has not seen.
        target: of a table, the column that is to be predicted from the others; the last one if left out.
        nfe: of a table, network calls to spend on each row, 20 if left out.
        out: of a table, directory of the report.
    """
    import torch

    from bfn.likelihood.bits import held_out_bits

    check_positive(n=held_out.n, batch=batch, n_steps=min(n_steps, default=None))
    source = load(model, held_out.device, held_out.network)
    if source.info.columns is not None:
        _evaluate_table(model, source, held_out, train, target, nfe, out, json)
        return
    given = {"train": train, "target": target, "nfe": nfe, "out": out}
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise UserError(f"--{wrong} {given[wrong]}: only for models of tables; leave it out")
    read = held_out.read(source, json)

    def bits(steps: int | None) -> dict[str, Estimate]:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        settings: dict[str, Any] = {"n_steps": steps, "batch": batch, "generator": generator}
        return held_out_bits(source, read.x, **read.arguments(source), **settings, progress=shown(json))

    figures = {"": bits(None), **{f"{steps}-step ": bits(steps) for steps in n_steps}}
    values, headline = held_out.told(model, source, read)
    plain = {kind: {name: figure.asdict() for name, figure in parts.items()} for kind, parts in figures.items()}
    values |= {**plain.pop(""), "n_steps": {kind.partition("-")[0]: parts for kind, parts in plain.items()}}
    lines = [f"  {kind + name:24}{figure}" for kind, parts in figures.items() for name, figure in parts.items()]
    if source.flow.has_range and not source.info.scaling:
        lines.append("  (of a density, in the units that the network sees; the reconstruction is the head's at t = 1)")
    tell(values, [headline, *lines], json)


def _evaluate_table(
    name: str, model: BFN, held_out: HeldOut, train: Path | None, target: str | None, nfe: int | None, out: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Draw rows, judge them, and write the report."""
    from bfn.quality.table_report import table_parts, table_report
    from bfn.tables.synthesizer import TableSynthesizer

    check_positive(nfe=nfe)
    if out is not None and out.is_file():
        raise UserError(f"--out {out}: is a file: expected a directory")
    seen, unseen = table_parts(model, held_out.data, train)
    calls = {} if nfe is None else {"nfe": nfe}
    rows = TableSynthesizer.of(model, name).sample(held_out.n, seed=held_out.seed, **calls)
    report = table_report(rows, seen, unseen, target=target, name=name, seed=held_out.seed)
    written = [] if out is None else report.save(out)
    lines = [*report.lines(), "", table(*report.cells())]
    lines += [f"\nwritten to {', '.join(map(str, written))}"] if written else []
    tell(report.asdict(), lines, json)
