"""The command ``bfn train``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli import WORD_ORDER, common
from bfn.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bfn.training import Settings

TABLE_FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
TABLE_SETTINGS = ("steps", "batch", "lr", "width", "n_blocks", "dropout", "kinds", "drop", "network")
STOPPED = {"SIGINT": 130, "SIGTERM": 143}
"""Exit codes of a training run that a signal has stopped, as in shells."""

SETTING = re.compile(r"[a-z][\w.]*=.*", re.DOTALL)
OF_ONE_VALUE = ("--recipe", "--config", "--data", "--label", "--tokenizer", "--network", "--out", "--seed")
"""Options whose value may look like a setting."""


@dataclass(frozen=True)
class ColumnOptions:
    """Roles of the columns of records.

    Args:
        sequence: columns of texts that are the sample, or parts of it.
        parts: further columns that belong to the sample: numbers, classes, arrays.
        label: the column with the class of each record.
        conditions: columns that samples can be conditioned on: numbers or classes.
        classes: columns whose values are classes although they look like numbers.
        tokenizer: how texts are split: characters, smiles, amino-acids, words, a tokenizer file, or a list of tokens.
    """

    sequence: common.Names = ()
    parts: common.Names = ()
    label: Annotated[str | None, common.NAME] = None
    conditions: common.Names = ()
    classes: common.Names = ()
    tokenizer: Annotated[str | None, common.NAME] = None

    @property
    def of_records(self) -> bool:
        """True if a column has a role that columns of a table cannot have."""
        return any((self.sequence, self.parts, self.label, self.conditions, self.tokenizer))

    def given(self) -> dict[str, Any]:
        """Return the options that were given, in the form of settings of the data."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items() if value}


NO_ROLES = ColumnOptions()


def train(
    changes: Annotated[Positional[tuple[str, ...]], arg(metavar="[PATH] [NAME=VALUE ...]")] = (),
    recipe: Annotated[str | None, common.NAME] = None,
    config: Annotated[Path | None, common.FILE] = None,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    columns: ColumnOptions = NO_ROLES,
    network: Annotated[str | None, arg(metavar="MODULE:CLASS")] = None,
    out: Annotated[Path | None, common.DIRECTORY] = None,
    seed: Annotated[int | None, common.SEED] = None,
    resume: bool = False,
    cpu: bool = False,
    json: Annotated[bool, arg(help="print the lines of the log as one JSON value each")] = False,
) -> int:
    """Train a model. Training can be stopped at any time and continued with --resume.

    On your own data the settings are chosen to suit them; a recipe has its own settings. A .csv, .tsv or .parquet file
    is a table whose rows are learned, unless --sequence, --parts, --label or --conditions name columns: then only these
    are learned.

    Example: bfn train people.csv --out runs/people

    Example: bfn train people.parquet --out runs/people drop=id steps=5000

    Example: bfn train molecules.csv --sequence smiles --conditions gap --out runs/molecules steps=20000

    Example: bfn train points.npz --out runs/points network.width=512

    Example: bfn train --recipe digits --out runs/digits

    Example: bfn train photos/ --recipe mnist --out runs/photos steps=20000 network.channels=64

    Example: bfn train --out runs/photos --resume

    On several GPUs: accelerate launch -m bfn train --recipe cifar10-continuous-256 --out runs/cifar10

    Args:
        changes: data to train on, a path as for --data, and settings to change, such as lr=1e-3 batch=128
            network.channels=64.
        recipe: name of settings that come with the package; a wrong name lists them.
        config: .yaml, .toml or .json file with settings.
        data: a standard data set, an image folder, a .npz, .npy or idx file, a text file, or records (.csv, .tsv,
            .parquet, .fasta, .smi), instead of the data in the settings.
        network: a network of your own, module:Class or file.py:Class, which is created with the sizes that it takes;
            its code is run. Or the name of a network of this package.
        out: directory of the run; by default runs/ and the name of the recipe, file or data.
        seed: seed of all random numbers, instead of the one in the settings.
        resume: continue from the newest complete checkpoint of the run, with the run's settings if none are given.
        cpu: do not use GPUs.
    """
    if recipe is not None and config is not None:
        raise UserError("--recipe and --config: give one of them")
    source, changes = _split_data(changes, data)
    name = recipe or (None if config is None else config.stem)
    run = out or _default_run(name, source)

    from bfn import training

    stored, of_table = resume and (run / "settings.json").is_file(), _is_of_table(run, source, changes)
    if not any((name, source, stored, resume and of_table)):
        raise UserError(f"PATH, --recipe NAME or --config FILE: say what to train; there is no run to resume in {run}")
    if of_table and not name and not columns.of_records:
        return _train_table(source, changes, columns.classes, network, run, seed, resume, cpu, json)
    if name or stored:
        settings = training.recipe(recipe) if recipe else training.read_settings(config or run / "settings.json")
        settings = _override(settings, source, columns, network)
    else:
        settings = _suited_settings(str(source), columns, changes, network)
    settings = settings.override(common.given_only(seed=seed)).override(changes)
    result = training.train(settings, run, resume=resume, progress=common.shown(json), cpu=cpu)
    return STOPPED.get(result.stopped_by or "", 0)


def _override(settings: Settings, source: str | None, columns: ColumnOptions, network: str | None) -> Settings:
    """Return the settings with the data, columns and network that were given."""
    data = {f"data.{key}": value for key, value in columns.given().items()}
    settings = settings.override(common.given_only(**{"data.name": source})).override(data)
    return settings if network is None else settings.override({"network": {"name": network}})


def _is_of_table(run: Path, source: str | None, changes: Sequence[str]) -> bool:
    """Return True if the data are a table or, without data, if the run is one of a table."""
    from bfn.tables.synthesizer import is_table_run

    return is_table_run(run) if source is None else is_table(source, changes)


def is_table(source: str, changes: Sequence[str]) -> bool:
    """Return True for a table: a file of records or a standard data set of rows, if no setting names columns."""
    from bfn.data import SOURCES

    of_records = any(change.startswith("data.") for change in changes)
    known = source in SOURCES and SOURCES[source].is_table
    return known or (source.lower().endswith(TABLE_FILES) and not of_records)


def settings_first(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with settings NAME=VALUE moved before the options."""
    path, rest = (words[:1], words[1:]) if words and not words[0].startswith("-") else ([], words)
    before = ("", *rest)
    is_setting = [bool(SETTING.fullmatch(word)) and before[i] not in OF_ONE_VALUE for i, word in enumerate(rest)]
    pairs = list(zip(rest, is_setting, strict=True))
    return [*path, *(word for word, setting in pairs if setting), *(word for word, setting in pairs if not setting)]


WORD_ORDER[train] = settings_first


def _split_data(changes: tuple[str, ...], given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the data, those given or the first word if it is a path or a standard data set, and the other words."""
    from bfn import data

    first = changes[0] if changes else ""
    is_path = Path(first).exists() or ("=" not in first and ("/" in first or "." in first))
    if not first or not (is_path or first in data.names()):
        return given, changes
    if given is not None:
        raise UserError(f"{first} and --data {given}: give one of them")
    return first, changes[1:]


def _default_run(name: str | None, source: str | None) -> Path:
    """Return the directory of a run that is named after its recipe, settings or data."""
    if name is None and source is None:
        raise UserError("PATH, --recipe NAME or --config FILE: say what to train, or which run to resume with --out")
    return Path("runs") / (name or Path(str(source)).name.partition(".")[0])


def _suited_settings(source: str, columns: ColumnOptions, changes: Sequence[str], network: str | None) -> Settings:
    """Return settings that suit the data. Settings of the data may be among the changes."""
    from bfn import training

    given = dict(change.split("=", 1) for change in changes if change.startswith("data."))
    options = columns.given() | {key.removeprefix("data."): value for key, value in given.items() if key != "data.name"}
    return training.default_settings({"name": source, **options}, network)


def _train_table(
    source: str | None, changes: Sequence[str], classes: Sequence[str], network: str | None, run: Path,
    seed: int | None, resume: bool, cpu: bool, json: bool,
) -> int:  # fmt: skip
    """Train a model of the rows of a table."""
    import torch

    from bfn.tables.synthesizer import fit_in

    settings = {**_table_settings(changes, classes), **common.given_only(network=network, seed=seed)}
    device = "cuda" if torch.cuda.is_available() and not cpu else None
    began = time.perf_counter()
    synthesizer = fit_in(run, source, settings, resume=resume, device=device, progress=common.shown(json))
    seconds, card = time.perf_counter() - began, synthesizer.model.info.card
    values = {"out": str(run), "left_out": synthesizer.left_out, "seconds": round(seconds, 1), **card}
    line = f"{card['rows']} rows: {seconds:.0f} s, held-out loss {card['held_out_loss']:.4g}"
    after = f"the model is in {run}; rows of it: bfn sample {run} --n 1000 --out rows.csv"
    if synthesizer.stopped_by is not None:
        after = f"stopped by {synthesizer.stopped_by}; to go on: bfn train --out {run} --resume"
    common.tell(values, [line, after], json)
    return STOPPED.get(synthesizer.stopped_by or "", 0)


def _table_settings(changes: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of words such as kinds.COLUMN=number, drop=a,b or steps=5000, and of ``--classes``."""
    from bfn.training.settings import parse_change

    settings: dict[str, Any] = {}
    kinds = dict.fromkeys(classes, "class")
    for name, value in map(parse_change, changes):
        part, dot, column = name.partition(".")
        if dot and part == "kinds":
            kinds[column] = value
        elif name in TABLE_SETTINGS:
            settings[name] = value
        else:
            known = ", ".join(TABLE_SETTINGS)
            raise UserError(f"{name}: expected one of {known} for a table{did_you_mean(name, TABLE_SETTINGS)}")
    if isinstance(settings.get("drop"), str):
        settings["drop"] = [one.strip() for one in settings["drop"].split(",")]
    return settings | ({"kinds": {**settings.get("kinds", {}), **kinds}} if kinds else {})
