"""The commands ``bfn bench`` and ``bfn reproduce``, which the entry points of this distribution add to ``bfn``."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from bfn import UserError

AsJson = Annotated[bool, arg(help="one JSON value for programs instead of text for people")]
Names = Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")]
FILE, DIRECTORY, NAME = arg(metavar="FILE"), arg(metavar="DIR"), arg(metavar="NAME")


def bench(only: Names = (), quick: bool = False, threads: int = 1, json: AsJson = False) -> int:
    """Measure the cost of sampling, of training and of their parts, as ratios. Takes ten minutes, one with --quick.

    Everything that is compared takes turns within one run. A figure is the median of the rounds, with its 95 %
    interval. The exit code is 1 if a figure misses its goal.

    Example: bfn bench --quick

    Example: bfn bench --only sampling against --json

    Args:
        only: parts to measure: sampling, against, kernel, training, growth, memory, written, compiled, processes.
        quick: fewer cases and rounds.
        threads: CPU threads of torch.
    """
    _check_positive(threads=threads)

    from bfn_lab.bench import run

    figures = run(only, quick, threads, (lambda line: None) if json else partial(print, flush=True))
    missed = [found for found in figures if found.met is False]
    if json:
        print(json_format.dumps([found.asdict() for found in figures], indent=2))
    else:
        print(f"{len(figures)} figures, {len(missed)} of them miss their goal")
    return 1 if missed else 0


def reproduce(
    name: Annotated[Positional[str], NAME],
    checkpoint: Annotated[Path | None, FILE] = None,
    config: Annotated[str | None, NAME] = None,
    on: tuple[Literal["bundled", "exact", "official"], ...] | None = None,
    model: Annotated[tuple[str, ...], arg(metavar="MODEL [MODEL ...]")] = (),
    n: int | None = None,
    nfe: Annotated[tuple[int, ...], arg(metavar="N [N ...]")] = (),
    ceiling: Annotated[int, arg(metavar="CALLS")] = 0,
    context: int = 2,
    solvers: Names = (),
    paper_only: bool = False,
    quick: bool = False,
    seed: int = 0,
    out: Annotated[Path | None, DIRECTORY] = None,
    store: Annotated[Path | None, FILE] = None,
    threads: int | None = None,
    batch: int | None = None,
    json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, and write a report with the printed figures beside ours.

    NAME: fid-nfe, sa-nfe, cs-ablation, cs-trajectories, eta-continuous, eta-discrete, efficiency, samples, orders.

    Runs on the bundled models and on exact models of real data, or with --checkpoint on a published checkpoint.
    Measurements are stored at once, so that an interrupted run can be continued with the same command.

    Example: bfn reproduce sa-nfe --quick

    Example: bfn reproduce fid-nfe --model mnist --on bundled --nfe 5 --solvers auto fast-sde unipc3 sa-solver

    Example: bfn reproduce fid-nfe --checkpoint cifar10_256c_ema.pt --n 10000 --nfe 10 20 50

    Args:
        name: name of the table or figure.
        checkpoint: a published file of weights, see bfn convert.
        config: its configuration, such as text8_discrete; cifar10_continuous_256bins for images by default.
        on: kinds of models to run on: bundled, exact, official.
        model: models instead of the bundled ones, by name or directory.
        n: samples for each figure up to 10 calls, and 10 n / calls above, at least 100; 1000 on bundled models.
        nfe: numbers of calls (of steps, for orders; 1 / step size, for cs-trajectories).
        ceiling: number of calls at which the limit of the model is measured, such as 1000 (sa-nfe).
        context: symbols before each symbol that the exact model of text uses; 3 takes 40 times as long as 2.
        solvers: solvers beside the paper's, such as unipc3, deis3, sa-solver, bfn-optimal; auto, fast-ode and fast-sde
            by default (fid-nfe, sa-nfe, samples).
        paper_only: use the paper's solvers only.
        quick: 100 samples at 5 and 10 calls, to see that it works.
        seed: seed of everything that is drawn at random.
        out: directory for the report; reproduce-NAME by default.
        store: file of measurements to read and to add to; a common one in BFN_HOME by default.
        threads: CPU threads of torch.
        batch: samples in one batch of the network; other batches have other samples.
    """
    import torch

    from bfn.quality import default_store
    from bfn_lab.report import Options
    from bfn_lab.reproduce import QUICK, experiment
    from bfn_lab.reproduce import reproduce as run

    experiment(name)
    _check_positive(n=n, threads=threads, batch=batch, context=context, nfe=min(nfe, default=None))
    _check_options(checkpoint, paper_only, solvers, ceiling, seed)
    if threads is not None:
        torch.set_num_threads(threads)
    n, calls = n or (QUICK.n if quick else None), nfe or (QUICK.nfe if quick else None)
    options = Options(
        n=n, nfe=calls, seed=seed, ceiling=ceiling, beyond=() if paper_only else solvers or None, batch=batch,
        store=store or default_store(), progress=True,
    )  # fmt: skip
    places = on or (("official",) if checkpoint is not None else ("bundled", "exact"))
    target = out or Path(f"reproduce-{name}")
    values = {
        "config": config, "on": on, "model": model, "n": n, "nfe": calls, "ceiling": ceiling, "solvers": solvers,
        "paper-only": paper_only, "seed": seed, "batch": batch, "context": context if context != 2 else None,
        "checkpoint": checkpoint and checkpoint.name,
    }  # fmt: skip
    command = shlex.join(["bfn", "reproduce", name, *(word for item in values.items() for word in _words(*item))])
    report = run(
        name, target, options, on=places, models=model, checkpoint=checkpoint, settings=config, context=context,
        command=command,
    )  # fmt: skip
    print((target / "results.json" if json else report).read_text(encoding="utf-8"), end="")
    if not json:
        print(f"\nwritten to {target}", file=sys.stderr)


def _check_options(checkpoint: Path | None, paper_only: bool, solvers: Names, ceiling: int, seed: int) -> None:
    """Raise a UserError for options that contradict each other."""
    if checkpoint is not None and not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: no such file")
    if paper_only and solvers:
        raise UserError(f"--solvers {solvers[0]} with --paper-only: give one of them")
    if ceiling < 0:
        raise UserError(f"--ceiling {ceiling}: expected a number of calls, or 0 for none")
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed}: expected a whole number from 0 to {2**32 - 1}")


def _check_positive(**values: int | None) -> None:
    """Raise a UserError for numbers below 1."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: expected at least 1")


def _words(option: str, value: object) -> list[str]:
    """Return an option as it is typed; nothing if it is not set."""
    if not value:
        return []
    values = value if isinstance(value, tuple) else () if value is True else (value,)
    return [f"--{option}", *map(str, values)]
