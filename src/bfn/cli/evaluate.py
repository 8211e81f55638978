"""``bfn evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bfn.cli.common import (
    BATCH,
    DIRECTORY,
    FILE,
    NAME,
    AsJson,
    Counts,
    HeldOut,
    ModelName,
    check_positive,
    load,
    shown,
    table,
    tell,
)
from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.estimate import Estimate
    from bfn.model import BFN

__all__ = ["evaluate"]


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

    from bfn.likelihood import held_out_bits

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
        return held_out_bits(source, read.x, **read.given(source), **settings, progress=shown(json))

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
    from bfn.quality import table_report
    from bfn.quality.table_judge import table_parts
    from bfn.tables import TableSynthesizer

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
