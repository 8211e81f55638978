"""Parts of several commands: their common options, loading of models, and printing of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

import bfn
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn._utils.progress import Shown
    from bfn.core.sampling import Request
    from bfn.data.loading import ModelData

T = TypeVar("T")

LARGEST_SEED = 2**32 - 1
"""Largest seed that torch and numpy both accept."""


def _read_seed(words: list[str]) -> int:
    """Return the seed that a word of the command line gives."""
    if not words[0].isdecimal() or int(words[0]) > LARGEST_SEED:
        raise UserError(f"{words[0]}: expected a whole number from 0 to {LARGEST_SEED}")
    return int(words[0])


# --- options ----------------------------------------------------------------------------------------------------------

SEED = PrimitiveConstructorSpec(
    1, "N", _read_seed, lambda value: value is None or isinstance(value, int), lambda value: [str(value)]
)
FILE, DIRECTORY, NAME = arg(metavar="FILE"), arg(metavar="DIR"), arg(metavar="NAME")
BATCH = arg(help="samples per network batch; changing it changes the samples, even with the same seed")

ModelName = Annotated[
    Positional[str], arg(metavar="MODEL", help="directory of a model, or a bundled one, see bfn models")
]
FOR_PROGRAMS = "print one JSON value instead of text; progress becomes JSON lines on standard error"
AsJson = Annotated[bool, arg(help=FOR_PROGRAMS)]
Seed = Annotated[int, SEED, arg(help="seed of all random numbers; the same seed gives the same result")]
Device = Annotated[str, arg(metavar="NAME", help="cpu, cuda, cuda:1 or mps; auto uses a GPU if there is one")]
OWN_DATA = "a standard data set or a path, as for bfn train; by default the data set that the model was trained on"
Data = Annotated[str | None, arg(metavar="NAME_OR_PATH", help=OWN_DATA)]
OWN_NETWORK = "class of the network, for a model with a network of your own; its code is run"
Network = Annotated[str | None, arg(metavar="MODULE:CLASS", help=OWN_NETWORK)]
Names = Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")]
Counts = Annotated[tuple[int, ...], arg(metavar="N [N ...]")]
Number = Annotated[float | None, arg(metavar="NUMBER")]


@dataclass(frozen=True)
class PathOptions:
    """Options of ``bfn.sample`` that bfn sample and bfn distill share, in the same words.

    Args:
        solver: a solver, see bfn solvers; for data of several parts also PART=NAME for each part.
        nfe: network calls per sample; by default 10, for rows of a table 20.
        grid: times of the network calls: paper, uniform, log1p, log1p-early, power, log-snr, karras or information,
            some with numbers, as power:1.5 or log1p:4:0.1; by default the solver's own.
        g: stochasticity from 0, the ODE, through 1, the reverse SDE, to inf; for solvers that have this dial.
        guidance: scale of the conditions, for all or by name: 1 as they are, 2 twice as strong. Evaluates the network
            on a batch twice as large.
        temperature: divisor of the logits of classes: below 1 samples are less diverse, above 1 more.
    """

    solver: Annotated[tuple[str, ...], arg(metavar="NAME")] = ("auto",)
    nfe: int | None = None
    grid: Annotated[str | None, NAME] = None
    g: Number = None
    guidance: Annotated[tuple[str, ...], arg(metavar="SCALE | NAME=SCALE [...]")] = ()
    temperature: Annotated[float, arg(metavar="NUMBER")] = 1.0

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name, in the form of ``bfn.sample``."""
        words = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        values = {name: value for name, (value, usual) in words.items() if value != usual}
        if "solver" in values:
            values["solver"] = one_or_by_name("solver", self.solver, str)
        if "guidance" in values:
            values["guidance"] = one_or_by_name("guidance", self.guidance, _scale)
        return values


@dataclass(frozen=True)
class SampleOptions(PathOptions):
    """Options of ``bfn.sample`` for the command line, in the same words.

    Args:
        t_start: time at which the grid starts (the paper's eta).
        path: for data of several parts: the parts that are drawn first, one after another; or together.
        clip: range that predictions are clipped to; by default the range of the data.
        no_clip: do not clip predictions.
        label: classes to draw, in turn, by name or number, -1 for none. By default they are drawn by their shares in
            the training data, and none beside known images.
        condition: other conditions by name: a number, several separated by commas, or the name of a class.
        lengths: length of the samples, for sequences of different lengths; by default drawn as in the training data.
        known_at: whether the network sees known data without noise or on their noisy path.
        particles: particles per sample, with which samples follow the model's distribution given --prompt, --known or
            --given. Takes that many times as long; auto then means fast-sde with g = 1.
        noise: fixed repeats the noise of the first state at every step, so that a seed gives about the same sample with
            any --nfe; this changes the distribution.
    """

    t_start: Annotated[float | None, arg(metavar="TIME")] = None
    path: Names = ()
    clip: Annotated[tuple[float, float] | None, arg(metavar="LOWEST HIGHEST")] = None
    no_clip: bool = False
    label: Annotated[tuple[str, ...], arg(metavar="CLASS [CLASS ...]")] = ()
    condition: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [NAME=VALUE ...]")] = ()
    lengths: Annotated[int | None, arg(aliases=["--length"])] = None
    known_at: Literal["data", "path"] = "data"
    particles: int | None = None
    noise: Literal["fresh", "fixed"] = "fresh"

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name, in the form of ``bfn.sample``."""
        if self.no_clip and self.clip is not None:
            raise UserError(f"--clip {self.clip[0]:g} {self.clip[1]:g} with --no-clip: leave one out")
        values = super().given()
        if values.pop("no_clip", False):
            values["clip"] = False
        if self.condition:
            pairs = (_pair("condition", word) for word in self.condition)
            values["condition"] = {name: _value(word) for name, word in pairs}
        if len(self.path) == 1:
            values["path"] = self.path[0]
        return values

    def request(self, n: int, **more: Any) -> Request:
        """Return the request for n samples.

        Args:
            n: number of samples, which have the classes of ``--label`` in turn.
            more: further options of ``bfn.sample``.
        """
        from bfn.core.sampling import Request

        values = {**self.given(), **more}
        if self.label:
            values["label"] = [self.label[i % len(self.label)] for i in range(n)]
        return Request.from_options(**values)


def one_or_by_name(option: str, words: Sequence[str], read: Callable[[str], T]) -> T | dict[str, T]:
    """Return the value of a single word, or the values of words NAME=VALUE by name."""
    if len(words) == 1 and "=" not in words[0]:
        return read(words[0])
    return {name: read(value) for name, value in (_pair(option, word) for word in words)}


def _pair(option: str, word: str) -> tuple[str, str]:
    """Return the name and the value of a word NAME=VALUE."""
    name, _, value = word.partition("=")
    if not (name and value):
        raise UserError(f"--{option} {word}: expected NAME=VALUE, such as gap=0.25")
    return name, value


def _value(word: str) -> Any:
    """Return a number, a list of numbers separated by commas, or the word itself."""
    try:
        numbers = [int(each) if each.lstrip("+-").isdecimal() else float(each) for each in word.split(",")]
    except ValueError:
        return word
    return numbers if len(numbers) > 1 else numbers[0]


def _scale(word: str) -> float:
    """Return a scale of guidance."""
    try:
        return float(word)
    except ValueError:
        raise UserError(f"--guidance {word}: expected a scale, such as 2, or NAME=SCALE") from None


@dataclass(frozen=True)
class HeldOut:
    """Data to measure a model on."""

    n: Annotated[int, arg(help="maximum number of samples; images are chosen at random, pieces of a text evenly")]
    data: Data = None
    part: Annotated[Literal["train", "validation", "test", "all"], arg(help="part of the data set")] = "test"
    seed: Seed = 0
    network: Network = None
    device: Device = "auto"

    def read(self, model: bfn.BFN, as_json: bool, n: int | None = None) -> ModelData:
        """Return the data in the form of the model; n: number of samples, if not ``self.n``."""
        from bfn.data.loading import read_model_data

        return read_model_data(model, self.data, self.part, n or self.n, seed=self.seed, progress=shown(as_json))

    def describe(self, name: str, model: bfn.BFN, read: ModelData) -> tuple[dict[str, Any], str]:
        """Return a description of the data and of the unit of the figures, as values for JSON and as a line."""
        tokenizer = model.info.text_tokenizer
        unit = f"bits per {tokenizer.unit.removesuffix('s') if tokenizer else 'dimension'}"
        conditions = [*(["class"] if read.label is not None else []), *read.condition]
        values = {
            "model": name, "data": read.source, "part": read.part, "n": len(read.x),
            "with_labels": read.label is not None, "conditions": [*read.condition], "seed": self.seed, "unit": unit,
        }  # fmt: skip
        given = f", each with its {' and '.join(conditions)}" if conditions else ""
        line = f"{name} on {len(read.x)} samples of {read.source} ({read.part}){given}, {unit}:"
        if model.info.scaling:
            line += "\n  (numbers are scaled as in training, to about mean 0 and standard deviation 1)"
        return values, line


# --- models and results -----------------------------------------------------------------------------------------------


def load(name: str, device: str = "cpu", network: str | None = None) -> bfn.BFN:
    """Load a stored or bundled model on a device.

    Args:
        name: directory or name of the model.
        device: name of the device; "auto" for a GPU if there is one.
        network: class of a network of the user, as "module:Class".
    """
    import torch

    from bfn._utils.pieces import Processes

    if device == "auto":
        processes = Processes.here()
        own = f"cuda:{processes.local_index}" if processes.count > 1 else "cuda"
        device = own if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: "Torch not compiled with CUDA enabled"
        reason = str(error).splitlines()[0]
        raise UserError(f"device={device!r}: not on this machine ({reason}): take cpu, or auto") from None
    if network is None:
        return bfn.load(name).to(device)
    from bfn.training.building import load_with_network

    return load_with_network(name, network).to(device)


def is_table(model: bfn.BFN) -> bool:
    """Return True for a model of rows of a table."""
    return model.info.columns is not None


def shown(as_json: bool = False) -> Shown:
    """Return how progress is shown: by the first process alone, as JSON lines if the result is JSON."""
    from bfn._utils.pieces import Processes

    return False if not Processes.here().main else "json" if as_json else True


def tell(values: object, lines: Iterable[str], as_json: bool) -> None:
    """Print one JSON value, or lines of text."""
    print(*([json.dumps(values, indent=2)] if as_json else lines), sep="\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns of text."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def written_to(paths: Iterable[object]) -> str:
    """Return the end of a line that names written files."""
    return f"written to {', '.join(map(str, paths))}"


def given_only(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def refuse_given(why: str, values: Mapping[str, Any]) -> None:
    """Raise a UserError if any of the options was given."""
    wrong = next((name for name, value in values.items() if value), None)
    if wrong is not None:
        raise UserError(f"--{wrong.replace('_', '-')}: {why}")


def check_positive(**values: int | None) -> None:
    """Raise a UserError for counts below 1; None stands for an option that is not given."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: expected at least 1")
