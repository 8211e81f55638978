"""TableSynthesizer: learn a table, draw rows like its own, fill in missing cells; runs and rows on disk."""

from __future__ import annotations

import json
import math
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from bfn.core.model import BFN
from bfn.core.sampling import MOST_NUMBERS, Request
from bfn.data import table_files as files
from bfn.data.table_columns import TableColumns, pandas
from bfn.networks.conditioning import MOST_BLOCKS
from bfn.storage.models import load
from bfn.tables.conditions import columns_of
from bfn.tables.sampling import CALLS, ROWS, TRIES, Gaps, RowRequest, SamplingReport, draw_rows
from bfn.tables.training import TableObjective, check_network, table_model, table_trainer
from bfn.training import checkpoints
from bfn.training.source import TensorSource
from bfn.training.trainer import Checkpointing, HeldOutLoss, Trainer

SEPARATORS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*SEPARATORS, ".parquet")

SETTINGS = "table.json"
"""File in the folder of a run with its data and its settings."""

EPOCHS, LEAST_STEPS, MOST_STEPS = 250, 2000, 16_000
"""Number of passes over the rows, and bounds of the number of steps. On one core this takes seven minutes for Magic and
ten for Adult, which has hundreds of classes."""
MOST_BATCH = 256
"""Largest default batch; larger ones train less in the same time."""
MOST_WIDTH = 10**6
"""Largest width of a network."""
DRAWS = 20
"""Default number of draws for the mean of a missing number."""
FEW_ROWS, FEWEST_ROWS = 10_000, 2_000
"""Below the first number of rows, training uses dropout. Below the second it uses more of it, a smaller network and a
lower learning rate: the held-out loss is 0.450 instead of 0.458 on the 666 rows of german, 0.461 instead of 0.463 on
the 982 rows of contraceptive."""


# --- rows and runs on disk --------------------------------------------------------------------------------------------


def check_row_file(path: Path | str) -> Path:
    """Return the path if rows can be written to it; raise a UserError otherwise."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        hint = did_you_mean(path.suffix, ENDINGS)
        raise UserError(f"{path}: rows are written to files ending with {', '.join(ENDINGS)}{hint}")
    if path.is_dir():
        raise UserError(f"{path}: is a directory: expected a file")
    return path


def write_rows(path: Path | str, pieces: Iterable[Any], example: Any) -> int:
    """Write DataFrames one after another to a file, and return the number of rows.

    Memory holds one piece at a time. The file appears when all rows have been written.

    Args:
        path: a .csv, .tsv or .parquet file.
        pieces: the DataFrames.
        example: rows without a missing cell, with the types of all pieces: in a piece a column may be all missing.
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
            form: dict[str, Any] = {"sep": SEPARATORS[path.suffix.lower()], "index": False, "lineterminator": "\n"}
            with temporary.open("w", encoding="utf-8", newline="") as file:
                example.head(0).to_csv(file, **form)
                for piece in pieces:
                    piece.to_csv(file, header=False, **form)
                    count += len(piece)
    return count


def is_table_run(run: Path) -> bool:
    """Return True if a folder holds a run on a table."""
    return (run / SETTINGS).is_file()


def fit_in(
    run: Path, source: str | None, settings: Mapping[str, Any], *, resume: bool = False, device: str | None = None,
    progress: Shown = True,
) -> TableSynthesizer:  # fmt: skip
    """Learn a table in a folder, or resume the run in it.

    Args:
        run: the folder.
        source: a file or the name of a table; may be None to resume.
        settings: arguments of ``TableSynthesizer``. A resumed run keeps its own for those that are left out.
        resume: whether the folder may hold a run.
        device: see ``TableSynthesizer``.
        progress: whether to show progress.
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

    def store() -> None:
        atomic_write(run / SETTINGS, json.dumps({"data": where, **settings}, indent=2) + "\n")

    new = not run.exists()
    try:
        return synthesizer._fit(source, run, store)
    except UserError:
        if new and run.exists() and not (run / "checkpoints").exists():
            shutil.rmtree(run)
        raise


# --- the synthesizer --------------------------------------------------------------------------------------------------


class TableSynthesizer:
    """Learn a table, and draw rows like its own.

        synthesizer = bfn.TableSynthesizer(seed=0).fit(table)           # a pandas DataFrame, or "people.csv"
        synthesizer.sample(1000, given={"country": "FR"})               # a DataFrame with the table's types
        synthesizer.impute(table)                                       # missing cells drawn given the others
        synthesizer.save("people");  bfn.load("people").sample(16)      # a model like any other

    Parameters:
        seed: int, default 0. Seed of the weights, the held-out rows and all noise of training.
        kinds: mapping of str to str, default None. "number" or "class" by column, where ``bfn.data.infer_columns``
            would guess wrong.
        drop: collection of str, default (). Columns to leave out.
        drop_unlearnable: bool, default False. Whether to leave out columns that cannot be learned, such as identifiers,
            instead of refusing the table.
        network: {"mlp", "transformer"}, default "mlp". A perceptron, which is fast on a CPU, or a transformer over the
            columns, for a GPU.
        width: int, default None. Width of the network; None for a width that suits the number of rows.
        n_blocks: int, default None. Number of blocks of the network; None for the network's default.
        dropout: float, default None. Share of features that are dropped in training; None for 0.3, 0.1 or 0, the more
            rows the less.
        steps: int, default None. Maximum number of training steps; None for a number that suits the number of rows.
        batch: int, default None. Number of rows of a batch; None for 64 to 256.
        lr: float, default None. Largest learning rate; None for 0.001 for few rows and 0.003 otherwise.
        device: str, default None. Device to train on, such as "cuda"; None for the CPU.
        progress: bool, default None. Whether to show progress; None for progress if there is a terminal.

    Attributes:
        model: BFN. The model of the rows.
        columns: TableColumns. The columns of the table.
        left_out: dict of str to str. Columns that were left out because of ``drop_unlearnable``, with the reasons.
        stopped_by: str or None. Name of the signal that interrupted training.
    """

    def __init__(
        self, seed: int = 0, *, kinds: Mapping[str, str] | None = None, drop: Collection[str] = (),
        drop_unlearnable: bool = False, network: str = "mlp", width: int | None = None, n_blocks: int | None = None,
        dropout: float | None = None, steps: int | None = None, batch: int | None = None, lr: float | None = None,
        device: str | None = None, progress: Shown | None = None,
    ) -> None:  # fmt: skip
        check_network(network)
        files.check_kinds_and_drop(kinds, drop)
        self.seed, self.kinds, self.drop, self.drop_unlearnable = check_seed(seed), kinds, drop, drop_unlearnable
        self.network = network
        self.dropout, self.lr = check_share("dropout", dropout), check_positive("lr", lr)
        self.width, self.n_blocks = _count("width", width, MOST_WIDTH), _count("n_blocks", n_blocks, MOST_BLOCKS)
        self.steps, self.batch = _count("steps", steps), _count("batch", batch)
        self.device, self.progress = device, True if progress is None else progress
        self.left_out: dict[str, str] = {}
        self.stopped_by: str | None = None
        self._model: BFN | None = None

    @property
    def model(self) -> BFN:
        """The model of the rows."""
        if self._model is None:
            raise UserError("a TableSynthesizer that has seen no table: call fit(table) first")
        return self._model

    @property
    def columns(self) -> TableColumns:
        """The columns of the table."""
        return columns_of(self.model)

    def fit(self, table: Any, run: Path | str | None = None) -> TableSynthesizer:
        """Learn a table.

        One row in ten is held out. The newest weights whose loss on these rows is within 1 % of the lowest one are
        kept, and training ends if none were kept for long. Ctrl-C ends training with the weights kept so far.

        Parameters:
            table: pandas.DataFrame, pyarrow.Table or path of a .csv or .parquet file. Rows of a large file are kept on
                disk: memory holds a piece of it, and eight bytes for each row.
            run: path, default None. Folder for checkpoints, which are written every minute and on an interrupt. The
                same call resumes from them. The model is stored there too.

        Returns:
            The synthesizer itself.
        """
        return self._fit(table, None if run is None else Path(run), lambda: None)

    def _fit(self, table: Any, run: Path | None, begin: Callable[[], object]) -> TableSynthesizer:
        """Learn a table. ``begin`` is called before the first step, when nothing can be refused any more."""
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            trainer, facts = self._trainer(files.open_table(table), run, Path(folder) / "rows")
            begin()
            bar = Progress(trainer.stopping.steps, "training", "step", self.progress, start=trainer.step)
            self.stopped_by = trainer.run(bar)
        kept = trainer.stopping
        assert isinstance(kept, HeldOutLoss)
        if self.stopped_by == "SIGINT" and kept.kept_step == 0:
            raise KeyboardInterrupt
        rows, settings = facts["rows"], {"steps": kept.kept_step, **self._settings(facts["rows"])[1]}
        trainer.result.info.card = {"rows": rows, "held_out_loss": kept.kept_loss, "table_training": settings}
        self._model = trainer.result.eval()
        if run is not None and kept.kept_step:
            self.save(run)
        if self.stopped_by == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        return self

    def _trainer(self, table: Any, run: Path | None, file: Path) -> tuple[Trainer, Mapping[str, Any]]:
        """Return the trainer, with the state of the last checkpoint if there is one, and the facts of the run."""
        newest = None if run is None else checkpoints.latest(run)
        columns, n = self._columns_in(table, self.progress and newest is None), len(table)
        sizes, settings, steps = self._settings(n)
        model = table_model(columns, self.network, **sizes)
        model = model if self.device is None else model.to(self.device)
        if isinstance(table, files.TableStream):
            x = table.encoded(columns, model.as_data, file)
        else:
            x = model.as_data(columns.encode(table)).to(model.dtype).to(model.device)
        facts = {"steps": steps, **settings, "rows": n, "columns": list(columns.names)}
        source = TensorSource(x, {}, ModelInfo())
        trainer = table_trainer(
            TableObjective(model, source, settings["batch"], self.seed, facts), steps, settings["lr"]
        )
        if run is not None:
            trainer.checkpointing = Checkpointing(run, BFN.save, minutes=1.0)
        if newest is not None:
            trainer.restore(newest)
        return trainer, facts

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
            columns: TableColumns = files.infer_columns(table, self.kinds, self.drop)
            return columns
        except files.UnlearnableColumnsError as error:
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
        """Draw rows.

        Parameters:
            n: int. Number of rows.
            given: mapping, str or list of str, default None. Cells that all rows have, such as {"country": "FR"}; the
                other cells are drawn given these. None asks for a missing cell, a list for any of its values. Or texts
                such as ["country=FR", "age>40"]: classes are drawn within the range, and numbers until they meet it.
            constraints: str, DataFrame, callable or a list of these, default None. Rules that rows must meet, such as
                "start <= end" or "a + b == total", DataFrames of the allowed combinations of their columns, or
                functions of a DataFrame. Rows that break a rule are drawn again.
            nfe: int, default 20. Number of network calls.
            seed: int, default 0. Seed of the random numbers.
            settings: ``tries``, int, default 100: the maximum number of rows that are drawn for each row that is asked
                for. ``particles``, int, default None: number of particles for each row, which are steered to what
                ``given`` asks for instead of drawing again. All options of ``bfn.sample``.

        Returns:
            pandas.DataFrame with the types and the order of the table's columns. ``rows.attrs["sampling"]`` is a report
            on the conditions, with the acceptance rate.
        """
        check_whole("n", n, 1, MOST_NUMBERS // len(self.columns.names))  # they are held at once; sample_to writes more
        pieces, _, report = self._draw(n, given, constraints, nfe=nfe, seed=seed, **settings)
        drawn = list(pieces)
        rows = drawn[0] if len(drawn) == 1 else pandas().concat(drawn)
        rows.attrs["sampling"] = report.asdict()
        return rows

    def sample_to(
        self, path: Path | str, n: int, given: Any = None, *, constraints: Any = None, **settings: Any
    ) -> SamplingReport:
        """Write rows to a file as they are drawn, in constant memory.

        Parameters:
            path: path of a .csv, .tsv or .parquet file.
            n, given, constraints, settings: as in ``sample``.

        Returns:
            SamplingReport on the conditions.
        """
        check_row_file(path)
        pieces, example, report = self._draw(n, given, constraints, **settings)
        write_rows(path, pieces, example)
        return report

    def _draw(
        self, n: int, given: Any, constraints: Any, *, nfe: int = CALLS, seed: int = 0, tries: int = TRIES,
        batch: int = ROWS, **options: Any,
    ) -> tuple[Iterator[Any], Any, SamplingReport]:  # fmt: skip
        """Return an iterator of rows, one row as an example of their types, and the report, which grows with them."""
        rows, request = RowRequest.read(self.columns, given, constraints), Request.from_options(nfe=nfe, **options)
        report = rows.report()
        pieces = draw_rows(self.model, n, rows, report, request, seed=seed, tries=tries, batch=batch)
        return pieces, rows.example, report

    def impute(
        self, table: Any, *, draws: int | None = None, expected: bool = False, nfe: int = CALLS, seed: int = 0,
        **settings: Any,
    ) -> Any:  # fmt: skip
        """Fill in the missing cells of a table, given the other cells of their rows.

        Parameters:
            table: pandas.DataFrame, pyarrow.Table or path, with the columns of the model.
            draws: int, default None. Number of tables to draw, which are returned as a list; None for one table.
            expected: bool, default False. Whether to use the cells with the smallest expected error instead of a draw:
                the mean of numbers (over ``draws`` draws, 20 if None) and the most probable level otherwise. Such cells
                vary less than real ones.
            nfe: int, default 20. Number of network calls.
            seed: int, default 0. Seed of the random numbers.
            settings: options of ``bfn.sample``.

        Returns:
            pandas.DataFrame with all other cells as they are, or a list of them.

        Warns:
            UserWarning: a cell is outside the range of the training table.
        """
        table, request = files.as_frame(table), Request.from_options(nfe=nfe, **settings)
        check_whole("draws", 1 if draws is None else draws, 1, 10**6)
        gaps = Gaps.of(self.model, table)
        if expected:
            return gaps.expected(DRAWS if draws is None else draws, request, seed)
        found = [gaps.drawn(request, seed + draw) for draw in range(1 if draws is None else draws)]
        return found[0] if draws is None else found

    def log_likelihood(self, table: Any, **settings: Any) -> NDArray[np.float64]:
        """Return the log-likelihood of each row.

        It counts the log-density of numbers, and the log-probability of rounded and whole ones.

        Parameters:
            table: pandas.DataFrame, pyarrow.Table or path, with the columns of the model.
            settings: see ``bfn.likelihood.log_likelihood``.

        Returns:
            ndarray (n,), in nats. A lower bound if the table has classes.
        """
        table, columns = files.as_frame(table), self.columns
        parts = columns.encode(table)
        settings = {"generator": torch.Generator().manual_seed(0), **settings}
        result = self.model.log_likelihood(parts, **settings).log_prob.double().numpy() + columns.log_slopes(table)
        for i, column in enumerate(columns.number_columns):
            # A cell without a number is noise for the model, which is not part of the row.
            if column.n_states > 1:
                z = parts[columns.numbers_part][:, i]
                noise = torch.where(parts[column.name] == column.number_state, 0.0, -(z**2 + math.log(2 * math.pi)) / 2)
                result = result - noise.numpy()
        found: NDArray[np.float64] = result
        return found

    def save(self, directory: Path | str) -> Path:
        """Store the model in a directory, for ``bfn.load`` and ``load``; return the directory."""
        return self.model.save(directory)

    @classmethod
    def load(cls, directory: Path | str) -> TableSynthesizer:
        """Return a synthesizer with a stored model."""
        return cls.of(load(directory), str(directory))

    @classmethod
    def of(cls, model: BFN, name: str = "model") -> TableSynthesizer:
        """Return a synthesizer with a model of a table. ``name`` is the model's name in error messages."""
        columns_of(model, name)
        found = cls()
        found._model = model
        return found


def _count(name: str, value: int | None, most: int = MOST_COUNT) -> int | None:
    return None if value is None else check_whole(name, value, 1, most)
