"""Rows on disk, piece by piece: .csv, .tsv or .parquet, whole or not there at all."""

from __future__ import annotations

import json
import math
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bfn._utils.arguments import MOST_COUNT, check_positive, check_seed, check_share, check_whole, require
from bfn._utils.files import atomic, atomic_write
from bfn._utils.progress import Progress, Shown, say
from bfn.core.errors import UserError, did_you_mean
from bfn.core.info import ModelInfo
from bfn.core.model import BFN, load
from bfn.core.sampling import MOST_NUMBERS
from bfn.data.table_columns import TableColumns, pandas
from bfn.data.table_files import (
    TableStream,
    UnlearnableColumnsError,
    as_frame,
    check_kinds_and_drop,
    columns_in,
    open_table,
)
from bfn.networks.conditioning import MOST_BLOCKS
from bfn.tables.sampling import CALLS, Gaps, RowRequest, SamplingReport, draw_rows
from bfn.tables.training import TableObjective, check_network, table_model, table_trainer
from bfn.training import checkpoints
from bfn.training.source import TensorSource
from bfn.training.trainer import Checkpointing, HeldOutLoss

SEPARATORS = {".csv": ",", ".tsv": "\t"}
KINDS = (*SEPARATORS, ".parquet")


def check_row_file(path: Path | str) -> Path:
    """The path of a file that rows can be written to."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        hint = did_you_mean(path.suffix, KINDS)
        raise UserError(f"{path}: rows are written to files ending with {', '.join(KINDS)}{hint}")
    if path.is_dir():
        raise UserError(f"{path}: is a directory: expected a file")
    return path


def write_rows(path: Path | str, pieces: Iterable[Any], example: Any) -> int:
    """Write DataFrames one after another, and return the number of rows; memory holds one piece at a time.

    example: rows without a missing cell, whose types all pieces have: a piece of a column may be all missing.
    """
    path = check_row_file(path)
    count = 0
    with atomic(path) as temporary:
        if path.suffix.lower() == ".parquet":
            arrow, parquet = require("pyarrow", "to write Parquet"), require("pyarrow.parquet", "to write Parquet")
            schema = arrow.Schema.from_pandas(example, preserve_index=False)
            with parquet.ParquetWriter(temporary, schema) as writer:
                for piece in pieces:
                    writer.write_table(arrow.Table.from_pandas(piece, schema=schema, preserve_index=False))
                    count += len(piece)
        else:
            separator = SEPARATORS[path.suffix.lower()]
            with temporary.open("w", encoding="utf-8", newline="") as file:
                example.head(0).to_csv(file, sep=separator, index=False, lineterminator="\n")
                for piece in pieces:
                    piece.to_csv(file, sep=separator, index=False, header=False, lineterminator="\n")
                    count += len(piece)
    return count


SETTINGS = "table.json"
"""What a run was asked for, in its directory."""


def is_table_run(run: Path) -> bool:
    """Whether a directory holds a run on a table."""
    return (run / SETTINGS).is_file()


def fit_in(
    run: Path, source: str | None, settings: Mapping[str, Any], *, resume: bool = False, device: str | None = None,
    progress: Shown = True,
) -> TableSynthesizer:  # fmt: skip
    """Learn a table into a directory.

    source: a file or a standard table; None on resuming. settings: of :class:`TableSynthesizer`; on resuming those of
        the run, but for these.
    """
    if resume and is_table_run(run):
        stored = json.loads((run / SETTINGS).read_text())
        before = stored.pop("data")
        source, settings = source or before, {**stored, **settings}
    elif any((run / name).exists() for name in (SETTINGS, "config.json", "checkpoints")):
        raise UserError(f"{run}: holds a run already: resume it, --resume, or choose another directory")
    if source is None:
        raise UserError(f"{run}: holds no run on a table that could go on: say which table to learn")
    synthesizer = TableSynthesizer(**settings, drop_unlearnable=True, device=device, progress=progress)
    where = str(Path(source).resolve()) if Path(source).exists() else source
    new = not run.exists()
    atomic_write(run / SETTINGS, json.dumps({"data": where, **settings}, indent=2) + "\n")
    try:
        return synthesizer.fit(source, run)
    except UserError:
        if new and not (run / "checkpoints").exists():
            shutil.rmtree(run)
        raise


EPOCHS, LEAST_STEPS, MOST_STEPS = 250, 2000, 16_000
"""Magic takes seven minutes of one core, Adult, with hundreds of classes, ten."""
MOST_BATCH = 256
"""Of larger batches the same time makes less."""
MOST_WIDTH = 10**6
"""Of a network: more fits no memory."""
DRAWS = 20
"""Of which the mean of a missing number is taken."""
FEW_ROWS, FEWEST_ROWS = 10_000, 2_000
"""With fewer rows features are dropped out in training; with very few, more of them, of a smaller network that learns
more slowly: on german's 666 rows the held-out loss is .450 with it, .458 without, on contraceptive's 982 .461 and .463.
"""


class TableSynthesizer:
    """Learns a table, and makes rows like its own.

        synthesizer = bfn.TableSynthesizer(seed=0).fit(table)           # a pandas DataFrame, or "people.csv"
        synthesizer.sample(1000, given={"country": "FR"})               # a DataFrame with the table's types
        synthesizer.impute(table)                                       # missing cells drawn given the others
        synthesizer.save("people");  bfn.load("people").sample(16)      # it is a model as any other

    Args:
        seed: of the weights, the held-out rows and all noise of training.
        kinds, drop: what columns are, and which to leave out: see :func:`bfn.data.infer_columns`.
        drop_unlearnable: leave out columns that cannot be learned, as identifiers, instead of refusing the table;
            ``left_out`` then has them, with the reasons.
        network: "mlp", a perceptron that is fast on a processor, or "transformer", over columns, for a GPU.
        width, n_blocks: of the network; None for what it has by default.
        dropout: share of features left out in training; None for what the number of rows asks for.
        steps, batch: the most steps of training, and rows in each; None for what the number of rows asks for.
        lr: the highest learning rate; None for what the number of rows asks for.
        device: where to train, such as "cuda"; the processor if None.
        progress: whether to show it, with the time left; None for where there is a terminal.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        kinds: Mapping[str, str] | None = None,
        drop: Collection[str] = (),
        drop_unlearnable: bool = False,
        network: str = "mlp",
        width: int | None = None,
        n_blocks: int | None = None,
        dropout: float | None = None,
        steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        device: str | None = None,
        progress: Shown | None = None,
    ) -> None:
        check_network(network)
        check_kinds_and_drop(kinds, drop)
        self.seed, self.kinds, self.drop, self.drop_unlearnable = check_seed(seed), kinds, drop, drop_unlearnable
        self.network = network
        self.width, self.n_blocks = _count("width", width, MOST_WIDTH), _count("n_blocks", n_blocks, MOST_BLOCKS)
        self.steps, self.batch = _count("steps", steps), _count("batch", batch)
        self.dropout, self.lr = check_share("dropout", dropout), check_positive("lr", lr)
        self.device, self.progress = device, progress
        self.left_out: dict[str, str] = {}
        self.stopped_by: str | None = None
        self._model: BFN | None = None

    @property
    def model(self) -> BFN:
        """The model of the rows; ``model.info.columns`` has what the columns are."""
        if self._model is None:
            raise UserError("a TableSynthesizer that has seen no table: call fit(table) first")
        return self._model

    @property
    def columns(self) -> TableColumns:
        """What the columns are."""
        columns = self.model.info.columns
        assert columns is not None
        return columns

    def fit(self, table: Any, run: Path | str | None = None) -> TableSynthesizer:
        """Learn a pandas DataFrame, a pyarrow Table, or a .csv or .parquet file; returns itself.

        One row in ten is held out: the newest weights are kept whose loss on these rows is within 1 % of the least, and
        training ends where there have been none such for long. Ctrl-C ends it with what was kept so far.

        A large file is read in pieces, its rows kept on disk: memory holds a piece, and eight bytes a row.

        run: a directory for checkpoints, every minute and on an interrupt, from which the same call goes on; the
            model is stored there too.
        """
        with tempfile.TemporaryDirectory() as folder:
            return self._fit(open_table(table), None if run is None else Path(run), Path(folder) / "rows")

    def _fit(self, table: Any, run: Path | None, file: Path) -> TableSynthesizer:
        shown = True if self.progress is None else self.progress
        newest = None if run is None else checkpoints.latest(run)
        columns, n = self._columns_in(table, shown and newest is None), len(table)
        sizes, settings, steps = self._settings(n)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = table_model(columns, self.network, **sizes)
            model = model if self.device is None else model.to(self.device)
            if isinstance(table, TableStream):
                x = table.encoded(columns, model.as_data, file)
            else:
                x = model.as_data(columns.encode(table)).to(model.dtype).to(model.device)
            facts = {"steps": steps, **settings, "rows": n, "columns": list(columns.names)}
            source = TensorSource(x, {}, ModelInfo())
            objective = TableObjective(model, source, settings["batch"], self.seed, facts)
            trainer = table_trainer(objective, steps, settings["lr"])
            if run is not None:
                trainer.checkpointing = Checkpointing(run, BFN.save, minutes=1.0)
            if newest is not None:
                trainer.restore(newest)
            bar = Progress(steps, "training", "step", shown, start=trainer.step)
            self.stopped_by = trainer.run(bar)
        kept = trainer.stopping
        assert isinstance(kept, HeldOutLoss)
        if self.stopped_by == "SIGINT" and kept.kept_step == 0:
            raise KeyboardInterrupt
        settings = {"steps": kept.kept_step, **settings}
        trainer.result.info.card = {"rows": n, "held_out_loss": kept.kept_loss, "table_training": settings}
        self._model = trainer.result.eval()
        if run is not None and kept.kept_step:
            self.save(run)
        if self.stopped_by == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        return self

    def _settings(self, n: int) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Return the sizes of the network, the settings of training, and the number of steps, for n rows."""
        batch = min(MOST_BATCH, max(64, 2 ** round(math.log2(n / 32)))) if self.batch is None else self.batch
        steps = min(MOST_STEPS, max(LEAST_STEPS, EPOCHS * n // batch)) if self.steps is None else self.steps
        dropout = 0.3 if n < FEWEST_ROWS else 0.1 if n < FEW_ROWS else 0.0
        dropout = dropout if self.dropout is None else self.dropout
        lr = self.lr or (1e-3 if n < FEWEST_ROWS else 3e-3)
        small = self.width is None and self.network == "mlp" and n < FEWEST_ROWS
        sizes = {"width": 128 if small else self.width, "n_blocks": self.n_blocks, "dropout": dropout}
        return sizes, {"batch": batch, "dropout": dropout, "lr": lr, "seed": self.seed}, steps

    def _columns_in(self, table: Any, shown: Shown) -> TableColumns:
        try:
            return columns_in(table, self.kinds, self.drop)
        except UnlearnableColumnsError as error:
            if not self.drop_unlearnable or error.others is None:
                raise
            self.left_out = error.reasons
            if shown:
                for name, reason in error.reasons.items():
                    say(f"left out: column {name!r}, {reason}", shown)
            return error.others

    def sample(
        self, n: int, given: Any = None, *, constraints: Any = None, nfe: int = CALLS, seed: int = 0, **settings: Any
    ) -> Any:
        """n rows, a pandas DataFrame with the types and the order of the table's columns.

        given: cells that all rows have, ``{"country": "FR"}``, kept exactly while the others are drawn given these;
            None asks for a missing cell, a list for any of its values. Or texts, ``["country=FR", "age>40"]``: a range
            of classes is drawn among those that meet it, of numbers by drawing again.
        constraints: what rows are checked by and drawn again for: rules as "start <= end" or "a + b == total", a
            DataFrame of the allowed combinations of its columns, or functions of a DataFrame.
        settings: tries, rows drawn at most for each that is asked for (100); particles, so many for each row that are
            led to what ``given`` asks for instead of drawing again; and those of :func:`bfn.sample`.

        ``rows.attrs["sampling"]`` says how conditions were met, with the acceptance rate.
        """
        check_whole("n", n, 1, MOST_NUMBERS // len(self.columns.names))  # they are held at once; sample_to writes more
        request = RowRequest.read(self.columns, given, constraints)
        report = request.report(settings.get("particles"))
        pieces = list(draw_rows(self.model, n, request, report, nfe=nfe, seed=seed, **settings))
        rows = pieces[0] if len(pieces) == 1 else pandas().concat(pieces)
        rows.attrs["sampling"] = report.asdict()
        return rows

    def sample_to(
        self, path: Path | str, n: int, given: Any = None, *, constraints: Any = None, **settings: Any
    ) -> SamplingReport:
        """Write n rows to a .csv, .tsv or .parquet file as they are drawn, in constant memory; the rest as `sample`."""
        check_row_file(path)
        request = RowRequest.read(self.columns, given, constraints)
        report = request.report(settings.get("particles"))
        write_rows(path, draw_rows(self.model, n, request, report, **settings), request.example)
        return report

    def impute(
        self, table: Any, *, draws: int | None = None, expected: bool = False, nfe: int = CALLS, seed: int = 0,
        **settings: Any,
    ) -> Any:  # fmt: skip
        """The table with its missing cells drawn given the others of their rows; all other cells as they are.

        draws: how many tables to make, a list of them; None for one table alone.
        expected: fill by what errs least instead of a draw: numbers by the mean (of ``draws`` draws, 20 if None), all
            else by the most probable level. Such cells lie nearer together than real ones do.
        """
        table = as_frame(table)
        check_whole("draws", 1 if draws is None else draws, 1, 10**6)
        gaps = Gaps.of(self.model, table)
        if expected:
            return gaps.expected(DRAWS if draws is None else draws, nfe, seed, **settings)
        found = [gaps.drawn(nfe, seed + draw, **settings) for draw in range(1 if draws is None else draws)]
        return found[0] if draws is None else found

    def log_likelihood(self, table: Any, **settings: Any) -> NDArray[np.float64]:
        """log p of each row, nats, (n,): a lower bound where there are classes.

        Of numbers it is the log-density, of rounded ones and whole ones the log-probability of the rounded value.
        settings: see :func:`bfn.likelihood.log_likelihood`.
        """
        table, columns = as_frame(table), self.columns
        parts = columns.encode(table)
        settings = {"generator": torch.Generator().manual_seed(0), **settings}
        result = self.model.log_likelihood(parts, **settings).log_prob.double().numpy() + columns.log_slopes(table)
        for i, column in enumerate(columns.number_columns):
            # Where a cell has no number the model was shown noise, which is no part of the row.
            if column.n_states > 1:
                z = parts[columns.numbers_part][:, i]
                noise = torch.where(parts[column.name] == column.number_state, 0.0, -(z**2 + math.log(2 * math.pi)) / 2)
                result = result - noise.numpy()
        found: NDArray[np.float64] = result
        return found

    def save(self, directory: Path | str) -> Path:
        """Store the model, which :func:`bfn.load` and :meth:`load` read."""
        return self.model.save(directory)

    @classmethod
    def load(cls, directory: Path | str) -> TableSynthesizer:
        """A synthesizer with a stored model."""
        return cls.of(load(directory), str(directory))

    @classmethod
    def of(cls, model: BFN, name: str = "model") -> TableSynthesizer:
        """A synthesizer with a model of a table."""
        if model.info.columns is None:
            raise UserError(f"{name}: a model of something else than a table: bfn.load(...) reads it")
        found = cls()
        found._model = model
        return found


def _count(name: str, value: int | None, most: int = MOST_COUNT) -> int | None:
    return None if value is None else check_whole(name, value, 1, most)
