"""Everything that decides a training run, in one frozen value: from YAML or TOML, overridden, stored with the run."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bfn._utils.arguments import MOST_COUNT, check_whole
from bfn._utils.files import read_text
from bfn.core.errors import UserError, did_you_mean
from bfn.core.plain import to_plain
from bfn.data.loading import names

Config = Mapping[str, Any]
"""A part by its name, with its parameters: {"name": "edm", "mean": -1.2}."""

PARTS = ("data", "network", "flow", "head", "weighting")

AT_LEAST_0 = (
    "warmup", "eval_every", "sample_every", "checkpoint_every", "checkpoint_minutes", "weight_decay", "grad_clip"
)  # fmt: skip
"""Settings of which 0 means never or none."""

HARMLESS = frozenset(
    {"steps", "decay_from", "threads", "compile", "log_every", "eval_every", "eval_count", "sample_every"}
    | {"calibration", "sample_count", "sample_nfe", "checkpoint_every", "checkpoint_minutes", "tensorboard"}
)
"""What may differ between a run and its continuation without a word."""
RECORDED = frozenset({"lr", "final_lr", "warmup", "grad_clip", "data.name"})
"""What may differ too, so that a run that diverged or whose data have moved can go on, and is told in its log and card.
All else would make it another run."""


@dataclass(frozen=True)
class Settings:
    """A training run.

    The first five are parts, each {"name": ..., parameters}; a bare name stands for a part without parameters.

    data: a standard set or a path, as ``bfn.data.loading.load`` takes; ``length`` of the sequences of a text. Of images:
        ``levels`` to re-bin to, ``centres: true`` for values at the centres of bins, ``binarise`` (true: at the middle
        level; a number: seed of a static random binarisation; dynamic: at random each time an image is drawn) and
        ``labels: false``.
    network: one of ``bfn.networks``. Sizes that follow from the data (channels, classes, labels) are filled in.
    flow: "continuous" with ``sigma_1``, or "discrete" with ``beta_1``.
    head: one of ``bfn.core.heads.HEADS``; ``data_std`` of a preconditioned one is measured on the data if left out.
    weighting: one of ``bfn.core.losses.WEIGHTINGS``.
    batch: samples a step, over all processes and accumulated micro-batches together.
    accumulate: micro-batches that a process's share of the batch is cut into.
    warmup: steps over which the learning rate rises. It stays at its peak until the share ``decay_from`` of the steps,
        then falls along a cosine to ``final_lr`` times the peak. Before the fall ``steps`` can be changed on resuming.
    ema_decay: of the averaged weights; it rises to this value over the first steps.
    label_dropout: share of the samples trained without their class, and without each other condition for which
        condition_dropout has no share of its own, by name.
    known: share of the samples that are trained with a random share of their data known, as when the rest is filled in.
    start: a stored model, bundled or a directory, whose weights the training begins with, as in fine-tuning; its
        network must have these settings' sizes.
    threads: CPU threads of torch; left as they are if None.
    calibration: share of the training's time in which, at its end, the settings of the solver ``auto`` for this model
        are searched (``bfn.training.tuning.calibration.calibrate``); none after a training of less than a minute, or with 0.
    """

    data: Config
    network: Config
    flow: Config
    head: Config
    weighting: Config = field(default_factory=lambda: {"name": "bound"})
    optimiser: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    batch: int = 64
    accumulate: int = 1
    steps: int = 10_000
    warmup: int = 200
    decay_from: float = 0.0
    final_lr: float = 0.0
    grad_clip: float = 1.0
    ema_decay: float = 0.999
    label_dropout: float = 0.1
    condition_dropout: Mapping[str, float] = field(default_factory=dict)
    known: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    start: str | None = None
    seed: int = 0
    threads: int | None = None
    log_every: int = 50
    eval_every: int = 1000
    eval_count: int = 256
    sample_every: int = 1000
    sample_count: int = 16
    sample_nfe: int = 50
    checkpoint_every: int = 1000
    checkpoint_minutes: float = 5.0
    tensorboard: bool = True
    calibration: float = 0.1

    def __post_init__(self) -> None:
        hints = get_type_hints(Settings)
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            value = _part(item.name, value) if item.name in PARTS else _checked(item.name, value, hints[item.name])
            object.__setattr__(self, item.name, value)
        for name in ("batch", "accumulate", "steps", "log_every", "eval_count", "sample_count", "sample_nfe"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: expected at least 1")
            check_whole(name, getattr(self, name), 1, MOST_COUNT)
        for name in AT_LEAST_0:
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: expected at least 0 (0 for never or none)")
        for name in ("ema_decay", "label_dropout", "final_lr", "decay_from", "calibration", "known"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)}: expected a share in [0, 1]")
        if not isinstance(self.condition_dropout, Mapping):
            raise UserError(f"condition_dropout={self.condition_dropout!r}: expected a share for each name")
        for name, share in self.condition_dropout.items():
            if not isinstance(share, int | float) or not 0 <= share <= 1:
                raise UserError(f"condition_dropout.{name}={share}: expected a share in [0, 1]")
        if not 0 < self.lr < float("inf"):
            raise UserError(f"lr={self.lr}: expected a positive learning rate")
        if self.batch % self.accumulate:
            raise UserError(f"batch={self.batch}: not a multiple of accumulate={self.accumulate}")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads={self.threads}: expected at least 1, or null to leave them as they are")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "settings") -> "Settings":
        """Settings from plain values, as a file has them."""
        known = [item.name for item in dataclasses.fields(cls)]
        if not isinstance(values, Mapping):
            raise UserError(f"{source}: {type(values).__name__} instead of settings by name")
        for key in values:
            if key not in known:
                hint = did_you_mean(key, known) or f"; expected {', '.join(known)}"
                raise UserError(f"{source}: unknown setting {key!r}{hint}")
        for name in ("data", "network", "flow", "head"):
            if name not in values:
                raise UserError(f"{source}: has no {name!r}: say which to use")
        try:
            return cls(**values)
        except ValueError as error:
            raise UserError(f"{source}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON, YAML and TOML can hold; :meth:`from_dict` reads them back."""
        values: dict[str, Any] = to_plain(self)
        return values

    def with_whole_path(self) -> "Settings":
        """The same with paths from the root on, so that the run goes on from any directory."""
        name = str(self.data["name"])
        data = self.data if name in names() else {**self.data, "name": _whole_path(name)}
        return dataclasses.replace(self, data=data, start=self.start and _whole_path(self.start))

    def override(self, changes: Mapping[str, Any] | Iterable[str]) -> "Settings":
        """Some settings changed: {"lr": 1e-3, "network.width": 256} or ["lr=1e-3", "network.width=256"].

        A part given as a whole replaces the part; ``part.parameter`` changes one parameter of it, and further dots one
        within: flow.schedule.beta_1.
        """
        if not isinstance(changes, Mapping):
            changes = dict(parse_change(change) for change in changes)
        values = self.to_dict()
        for key, value in changes.items():
            part, dot, parameter = key.partition(".")
            if not dot:
                values[key] = value
            elif part in PARTS:
                parameter = "name" if key == "data.path" else parameter  # what a path is called in a setting
                values[part] = _with(values[part], parameter.split("."), value)
            else:
                raise UserError(f"{key}: only {', '.join(PARTS)} have parameters of their own")
        return Settings.from_dict(values, "settings")


def _whole_path(name: str) -> str:
    """A path from the root on, where there is something; else the name as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and not path.is_absolute() else name


def _with(values: Any, keys: Sequence[str], value: Any) -> Any:
    """Values within values, with the one at these keys changed."""
    if not keys:
        return value
    own = values if isinstance(values, Mapping) else {}
    return {**own, keys[0]: _with(own.get(keys[0]), keys[1:], value)}


def read_settings(path: Path | str) -> Settings:
    """Settings from a .yaml, .yml, .toml or .json file."""
    path = Path(path)
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: expected settings as .yaml, .toml or .json") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file: expected settings as .yaml, .toml or .json") from None
    return _parsed(text, path.suffix, str(path))


def recipes() -> tuple[str, ...]:
    """Names of the recipes that come with the package."""
    root = resources.files("bfn").joinpath("training", "recipes")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in root.iterdir() if entry.name.endswith(".yaml")))


def recipe(name: str) -> Settings:
    """The settings that reproduce a bundled model."""
    if name not in recipes():
        raise UserError(f"recipe {name!r}: expected one of {', '.join(recipes())}{did_you_mean(name, recipes())}")
    text = resources.files("bfn").joinpath("training", "recipes", f"{name}.yaml").read_text(encoding="utf-8")
    return _parsed(text, ".yaml", f"recipe {name}")


def differences(ours: Settings, theirs: Settings) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by name."""
    left, right = ours.to_dict(), theirs.to_dict()
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def moved(before: Config, now: Config) -> bool:
    """Whether data differ in their path alone, and are no longer where they were."""
    same = {**before, "name": None} == {**now, "name": None}
    return same and before["name"] not in names() and not Path(before["name"]).exists()


def _parsed(text: str, suffix: str, source: str) -> Settings:
    readers: dict[str, Callable[[str], Any]]
    readers = {".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads, ".json": json.loads}
    if suffix not in readers:
        raise UserError(f"{source}: expected a name that ends in .yaml, .toml or .json")
    try:
        values = readers[suffix](text)
    except ValueError as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None
    if not isinstance(values, Mapping):
        raise UserError(f"{source}: expected settings as 'name: value' lines")
    return Settings.from_dict(values, source)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {error}") from None


def parse_change(change: str) -> tuple[str, Any]:
    """Name and value of NAME=VALUE, whose value is read as YAML."""
    key, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"{change!r}: expected name=value, such as lr=1e-3 or network.width=256")
    return key.strip(), _number(_yaml(value))


def _part(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UserError(f"{name}={value!r}: expected a name, or a mapping with a 'name' and its parameters")
    return {key: _number(item) for key, item in value.items()}


def _number(value: Any) -> Any:
    """YAML 1.1 takes 1e-3 for a string; a part's parameter that reads as a float is one."""
    if isinstance(value, str) and value.lstrip("+-.")[:1].isdigit():
        try:
            return float(value)
        except ValueError:
            return value
    return list(value) if isinstance(value, tuple) else value


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value as its annotated type, or a line that says what was expected."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Mapping and isinstance(value, Mapping):
        return {str(key): _checked(f"{name}.{key}", one, kinds[1]) for key, one in value.items()}
    if value is None and type(None) in kinds:
        return None
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(kinds):
        return tuple(_checked(name, one, kind) for one, kind in zip(value, kinds, strict=True))
    kind = kinds[0] if origin is UnionType else hint
    number = _number(value)
    real = isinstance(number, int | float) and not isinstance(number, bool) and not math.isnan(number)
    if origin is Literal:
        fits, expected = value in kinds, f"one of {', '.join(kinds)}"
    elif origin is tuple:
        fits, expected = False, f"{len(kinds)} numbers"
    elif kind is bool:
        fits, expected = isinstance(value, bool), "true or false"
    elif kind is str:
        fits, expected = isinstance(value, str), "a name or a path"
    elif kind is int:
        fits, expected = real and float(number).is_integer(), "a whole number"
    else:
        fits, expected = real, "a number"
    if not fits:
        raise UserError(f"{name}={value!r}: expected {expected}")
    return kind(number) if kind in (int, float) else value
