"""Training on a table, for ``bfn train``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli.common import DIRECTORY, FILE, NAME, SEED, Names, shown, tell
from bfn.core.errors import UserError, did_you_mean

FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
NAMES = ("steps", "batch", "lr", "width", "n_blocks", "dropout", "kinds", "drop", "network")
STOPPED = {"SIGINT": 130, "SIGTERM": 143}
"""How a training that a signal ended exits, as shells say it."""


def is_table(source: str, changes: Sequence[str]) -> bool:
    """Whether what is given without a role for any column is a table: by the name of the file, or of a standard one."""
    from bfn.data.sources import SOURCES

    of_records = any(change.startswith("data.") for change in changes)
    known = source in SOURCES and SOURCES[source].is_table
    return known or (source.lower().endswith(FILES) and not of_records)


def train_table(
    source: str | None, changes: Sequence[str], classes: Sequence[str], network: str | None, run: Path,
    seed: int | None, resume: bool, cpu: bool, as_json: bool,
) -> int:  # fmt: skip
    """Learn a table into a directory."""
    import torch

    from bfn.tables.synthesizer import fit_in

    settings = _settings(changes, classes)
    settings |= {key: value for key, value in {"network": network, "seed": seed}.items() if value is not None}
    device = "cuda" if torch.cuda.is_available() and not cpu else None
    began = time.perf_counter()
    synthesizer = fit_in(run, source, settings, resume=resume, device=device, progress=shown(as_json))
    seconds, card = time.perf_counter() - began, synthesizer.model.info.card
    values = {"out": str(run), "left_out": synthesizer.left_out, "seconds": round(seconds, 1), **card}
    line = f"{card['rows']} rows: {seconds:.0f} s, held-out loss {card['held_out_loss']:.4g}"
    ends = [f"the model is in {run}; rows of it: bfn sample {run} --n 1000 --out rows.csv"]
    if synthesizer.stopped_by is not None:
        ends = [f"stopped by {synthesizer.stopped_by}; to go on: bfn train --out {run} --resume"]
    tell(values, [line, *ends], as_json)
    return STOPPED.get(synthesizer.stopped_by or "", 0)


def _settings(changes: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """What NAME=VALUE and --classes say: kinds.COLUMN=number, drop=a,b, steps=5000."""
    from bfn.training.settings import parse_change

    settings: dict[str, Any] = {}
    kinds = dict.fromkeys(classes, "class")
    for name, value in map(parse_change, changes):
        part, dot, column = name.partition(".")
        if dot and part == "kinds":
            kinds[column] = value
        elif name in NAMES:
            settings[name] = value
        else:
            raise UserError(f"{name}: expected one of {', '.join(NAMES)} for a table{did_you_mean(name, NAMES)}")
    if isinstance(settings.get("drop"), str):
        settings["drop"] = [one.strip() for one in settings["drop"].split(",")]
    return settings | ({"kinds": {**settings.get("kinds", {}), **kinds}} if kinds else {})


SETTING = re.compile(r"[a-z][\w.]*=.*", re.DOTALL)
OF_ONE_VALUE = ("--recipe", "--config", "--data", "--label", "--tokenizer", "--network", "--out", "--seed")


def train(
    changes: Annotated[Positional[tuple[str, ...]], arg(metavar="[PATH] [NAME=VALUE ...]")] = (),
    recipe: Annotated[str | None, NAME] = None,
    config: Annotated[Path | None, FILE] = None,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    sequence: Names = (),
    parts: Names = (),
    label: Annotated[str | None, NAME] = None,
    conditions: Names = (),
    classes: Names = (),
    tokenizer: Annotated[str | None, NAME] = None,
    network: Annotated[str | None, arg(metavar="MODULE:CLASS")] = None,
    out: Annotated[Path | None, DIRECTORY] = None,
    seed: Annotated[int | None, SEED] = None,
    resume: bool = False,
    cpu: bool = False,
    json: Annotated[bool, arg(help="print the lines of the log, one JSON value each, for programs")] = False,
) -> int:
    """Train a model; it can be stopped at any moment and goes on with --resume.

    On your own data, with settings that suit them, or by a recipe. A .csv, .tsv or .parquet file is a table, whose rows
    are learned; with columns named by --sequence, --parts, --label or --conditions these alone are.

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
        recipe: settings that come with the package, by name; a wrong name lists them.
        config: settings from a .yaml, .toml or .json file.
        data: a standard set, an image folder, a .npz, .npy or idx file, a text file, or records: .csv, .tsv, .parquet,
            .fasta, .smi; instead of the settings' own.
        sequence: columns of texts that are the sample, or parts of it.
        parts: further columns that belong to the sample: numbers, classes, arrays.
        label: the column with the class of each record.
        conditions: columns that samples may be asked for by: numbers or classes.
        classes: columns among these whose values are classes although they look like numbers.
        tokenizer: how texts are cut: characters, smiles, amino-acids, words, a tokenizer file, or a list of tokens.
        network: your own, module:Class or file.py:Class, made with the sizes that it takes; its code is run. Or one of
            the package's, by name.
        out: directory of the run; runs/ and the recipe's, file's or data's name if left out.
        seed: of all that is drawn at random, instead of the settings' own.
        resume: go on from the run's newest whole checkpoint, with the run's own settings if none are given.
        cpu: leave GPUs alone.
    """
    if recipe is not None and config is not None:
        raise UserError("--recipe and --config: give one of them")
    path, changes = _data_first(changes)
    if path is not None and data is not None:
        raise UserError(f"{path} and --data {data}: give one of them")
    source = path or data
    name = recipe or (config.stem if config else None)
    run = out or (Path("runs") / (name or Path(str(source)).name.partition(".")[0]) if name or source else None)
    if run is None:
        raise UserError("PATH, --recipe NAME or --config FILE: say what to train, or which run to resume with --out")
    from bfn.tables.synthesizer import is_table_run

    own = run / "settings.json"
    resumed = resume and own.is_file()
    if name is None and source is None and not resumed and not (resume and is_table_run(run)):
        raise UserError(f"PATH, --recipe NAME or --config FILE: say what to train; there is no run to resume in {run}")

    own_columns = any((sequence, parts, label, conditions, tokenizer))
    if name is None and not own_columns and (is_table_run(run) if source is None else is_table(source, changes)):
        return train_table(source, changes, classes, network, run, seed, resume, cpu, json)

    from bfn import training

    columns = {"sequence": sequence, "parts": parts, "label": label, "conditions": conditions, "classes": classes}
    named = {key: value for key, value in {**columns, "tokenizer": tokenizer}.items() if value}
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in named.items()}
    if name is None and not resumed:
        # Options of the data may be given as settings too, and decide what suits them.
        given = dict(change.split("=", 1) for change in changes if change.startswith("data."))
        options |= {key.removeprefix("data."): value for key, value in given.items() if key != "data.name"}
        settings = training.default_settings({"name": str(source), **options}, network)
    else:
        settings = training.recipe(recipe) if recipe is not None else training.read_settings(config or own)
        if source is not None:
            settings = settings.override({"data.name": source})
        settings = settings.override({f"data.{key}": value for key, value in options.items()})
        settings = settings if network is None else settings.override({"network": {"name": network}})
    settings = settings if seed is None else settings.override({"seed": seed})
    result = training.train(settings.override(changes), run, resume=resume, progress=shown(json), cpu=cpu)
    return STOPPED.get(result.stopped_by or "", 0)


def settings_first(words: Sequence[str]) -> list[str]:
    """The words of a command line with NAME=VALUE moved before the options: wherever they stand they are settings."""
    path, rest = (words[:1], words[1:]) if words and not words[0].startswith("-") else ([], words)
    before = ("", *rest)
    is_setting = [bool(SETTING.fullmatch(word)) and before[i] not in OF_ONE_VALUE for i, word in enumerate(rest)]
    pairs = list(zip(rest, is_setting, strict=True))
    return [*path, *(word for word, setting in pairs if setting), *(word for word, setting in pairs if not setting)]


def _data_first(given: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """What to train on, where it stands first: a path, or the name of a standard set; and the rest."""
    from bfn.data.loading import names

    first = given[0] if given else ""
    is_path = Path(first).exists() or ("=" not in first and ("/" in first or "." in first))
    return (first, given[1:]) if first and (is_path or first in names()) else (None, given)
