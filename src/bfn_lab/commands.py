"""``bfn bench``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from bfn.cli.common import BATCH, DIRECTORY, FILE, NAME, AsJson, Counts, Names, Seed, check_positive, shown, tell
from bfn.core.errors import UserError


def bench(only: Names = (), quick: bool = False, threads: int = 1, json: AsJson = False) -> int:
    """Measure what sampling, training and their parts cost, as ratios: some ten minutes, one with --quick.

    All that is compared takes turns within one run; a figure is the median of the rounds, with its 95 % interval. The
    exit code is 1 where a figure is not what it is to be.

    Example: bfn bench --quick

    Example: bfn bench --only sampling against --json

    Args:
        only: parts to measure: sampling, against, kernel, training, growth, memory, written, compiled, processes.
        quick: fewer cases and rounds.
        threads: CPU threads of torch; more of them wait for each other on a busy machine.
    """
    check_positive(threads=threads)

    from bfn_lab.bench import Figure, run

    def part(name: str, what: str) -> None:
        if not json:
            print(f"{name}: {what}", flush=True)

    def figure(found: Figure) -> None:
        if not json:
            print(found.line(), flush=True)

    figures = run(only, quick, threads, part, figure)
    missed = [found for found in figures if found.met is False]
    if json:
        tell([found.asdict() for found in figures], [], json)
    else:
        print(f"{len(figures)} figures, {len(missed)} not as they are to be")
    return 1 if missed else 0


def reproduce(
    name: Annotated[Positional[str], NAME],
    checkpoint: Annotated[Path | None, FILE] = None,
    config: Annotated[str | None, NAME] = None,
    on: tuple[Literal["bundled", "exact", "official"], ...] | None = None,
    model: Annotated[tuple[str, ...], arg(metavar="MODEL [MODEL ...]")] = (),
    n: int | None = None,
    nfe: Counts = (),
    ceiling: Annotated[int, arg(metavar="CALLS")] = 0,
    context: int = 2,
    solvers: Names = (),
    paper_only: bool = False,
    quick: bool = False,
    seed: Seed = 0,
    out: Annotated[Path | None, DIRECTORY] = None,
    store: Annotated[Path | None, FILE] = None,
    threads: int | None = None,
    batch: Annotated[int | None, BATCH] = None,
    json: AsJson = False,
) -> None:
    """Make a table or figure of the paper: our figures beside the printed ones, as a report folder.

    NAME: fid-nfe, sa-nfe, cs-ablation, cs-trajectories, eta-continuous, eta-discrete, efficiency, samples, orders.

    Runs on the bundled models and on exact models of real data; with --checkpoint on a published checkpoint instead.
    What is measured is stored at once: a run that was stopped goes on where it was.

    Example: bfn reproduce sa-nfe --quick

    Example: bfn reproduce fid-nfe --model mnist --on bundled --nfe 5 --solvers auto fast-sde unipc3 sa-solver

    Example: bfn reproduce fid-nfe --checkpoint cifar10_256c_ema.pt --n 10000 --nfe 10 20 50

    Args:
        name: which table or figure.
        checkpoint: a published file of weights; bfn convert tells more.
        config: its configuration, such as text8_discrete; cifar10_continuous_256bins for images if left out.
        on: what to run on: bundled, exact, official.
        model: models instead of the bundled ones, by name or directory.
        n: samples a figure up to 10 calls, and 10 n / calls above, at least 100; 1000 on bundled models if left out.
        nfe: numbers of calls (of steps, for orders; 1 / step size, for cs-trajectories).
        ceiling: measure also what the model gives at so many calls, such as 1000 (sa-nfe).
        context: symbols that the exact model of text looks back; 3 takes some 40 times as long.
        solvers: which run beside the paper's, such as unipc3, deis3, sa-solver, bfn-optimal; auto,
            fast-ode and fast-sde if left out (fid-nfe, sa-nfe, samples).
        paper_only: leave out all but the paper's solvers.
        quick: 100 samples at 5 and 10 calls, to see that it works.
        out: directory for the report; reproduce-NAME if left out.
        store: file of measurements to go on from and to add to; a common one in BFN_HOME if left out.
        threads: CPU threads of torch.
    """
    import torch

    from bfn.quality.comparison import default_store
    from bfn_lab.report import Options
    from bfn_lab.reproduce import QUICK, experiment
    from bfn_lab.reproduce import reproduce as run

    experiment(name)
    check_positive(n=n, threads=threads, batch=batch, context=context, nfe=min(nfe, default=None))
    if checkpoint is not None and not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: no such file")
    if paper_only and solvers:
        raise UserError(f"--solvers {solvers[0]} with --paper-only: give one of them")
    if ceiling < 0:
        raise UserError(f"--ceiling {ceiling}: expected a number of calls, or 0 for none")
    if threads is not None:
        torch.set_num_threads(threads)
    n, calls = n or (QUICK.n if quick else None), nfe or (QUICK.nfe if quick else None)
    options = Options(
        n=n, nfe=calls, seed=seed, ceiling=ceiling, beyond=() if paper_only else solvers or None, batch=batch,
        store=store or default_store(), progress=shown(),
    )  # fmt: skip
    places = on or (("official",) if checkpoint is not None else ("bundled", "exact"))
    target = out or Path(f"reproduce-{name}")
    given = {
        "config": config, "on": on, "model": model, "n": n, "nfe": calls, "ceiling": ceiling, "solvers": solvers,
        "paper-only": paper_only, "seed": seed, "batch": batch, "context": context if context != 2 else None,
        "checkpoint": checkpoint and checkpoint.name,
    }  # fmt: skip
    command = shlex.join(["bfn", "reproduce", name, *(word for item in given.items() for word in _words(*item))])
    report = run(
        name, target, options, on=places, models=model, checkpoint=checkpoint, settings=config, context=context,
        command=command,
    )  # fmt: skip
    print((target / "results.json" if json else report).read_text(encoding="utf-8"), end="")
    if not json:
        print(f"\nwritten to {target}", file=sys.stderr)


def _words(option: str, value: object) -> list[str]:
    """An option as it is typed; none where nothing is set."""
    if not value:
        return []
    values = value if isinstance(value, tuple) else () if value is True else (value,)
    return [f"--{option}", *map(str, values)]
