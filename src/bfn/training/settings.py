"""Settings of a training run: read from YAML, TOML or JSON, overridden, and stored with the run."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_type_hints

from bfn._utils.arguments import MOST_COUNT, check_positive, check_share, check_whole
from bfn._utils.files import read_text
from bfn.core.errors import UserError, did_you_mean
from bfn.core.plain import from_plain, to_plain
from bfn.data.loading import names

Config = Mapping[str, Any]
"""The name of an object with its parameters: {"name": "edm", "mean": -1.2}."""

RECIPES = resources.files("bfn").joinpath("training", "recipes")
"""Folder of the recipes that come with the package."""

PARTS = ("data", "network", "flow", "head", "weighting")
"""Settings that are a name with parameters."""

COUNTS = ("batch", "accumulate", "steps", "log_every", "eval_count", "sample_count", "sample_nfe", "threads")
"""Settings that are at least 1."""

AT_LEAST_0 = (
    "warmup", "eval_every", "sample_every", "checkpoint_every", "checkpoint_minutes", "weight_decay", "grad_clip"
)  # fmt: skip
"""Settings for which 0 means never or none."""

SHARES = ("ema_decay", "label_dropout", "final_lr", "decay_from", "calibration", "known")
"""Settings that are in [0, 1]."""

HARMLESS = frozenset(
    {"steps", "decay_from", "threads", "compile", "log_every", "eval_every", "eval_count", "sample_every"}
    | {"calibration", "sample_count", "sample_nfe", "checkpoint_every", "checkpoint_minutes", "tensorboard"}
)
"""Settings that may change when a run is resumed."""

RECORDED = frozenset({"lr", "final_lr", "warmup", "grad_clip", "data.name"})
"""Settings that may change as well, so that a run that diverged or whose data have moved can go on. The change is
recorded in the log and in the card. With any other setting changed it would be another run."""


@dataclass(frozen=True)
class Settings:
    """A training run.

    The first five are {"name": ..., parameters}; a bare name has no parameters.

    Attributes:
        data: a standard data set or a path, as ``bfn.data.load`` takes it. For text: ``length`` of the sequences. For
            images: ``levels`` to reduce the number of values; ``centres: true`` for values at the centres of bins;
            ``binarise`` (true: at the middle level; a number: seed of a random binarisation; dynamic: anew each time
            an image is drawn); ``labels: false``; ``flip: true`` to mirror images left-right at random; ``whole: true``
            to train on the validation part too, never on the test part.
        network: one of ``bfn.networks``. Sizes that follow from the data are filled in.
        flow: "continuous" with ``sigma_1``, or "discrete" with ``beta_1``.
        head: one of ``bfn.core.heads.HEADS``; ``data_std`` is measured on the data if a head needs it.
        weighting: one of ``bfn.core.losses.WEIGHTINGS``.
        optimiser: "adamw", or "muon", which orthogonalises the momentum of matrices.
        lr, weight_decay, betas, grad_clip: options of the optimiser, and the largest norm of the gradient.
        batch: number of samples in a step, over all processes and accumulated parts.
        accumulate: number of parts that the share of each process is split into.
        steps: number of steps.
        warmup, decay_from, final_lr: the learning rate rises over ``warmup`` steps, stays at its peak until the share
            ``decay_from`` of the steps, then falls along a cosine to ``final_lr`` times the peak. Before it falls,
            ``steps`` can be changed on resuming.
        ema_decay: decay of the averaged weights; it rises to this value over the first steps.
        label_dropout: share of the samples that are trained without their class, and without each other condition.
        condition_dropout: the same share for single conditions, by name.
        known: share of the samples that are trained with a random part of their data known.
        precision, compile: type of the network's numbers, and whether it is compiled.
        start: a bundled model or a folder, whose weights training begins with. Its network must have the same sizes.
        seed: seed of all random numbers.
        threads: number of CPU threads of torch; unchanged if None.
        log_every, eval_every, sample_every, checkpoint_every: number of steps between two log lines, evaluations,
            pictures of samples and checkpoints.
        checkpoint_minutes: time between two checkpoints.
        eval_count, sample_count, sample_nfe: number of held-out samples; of samples in a picture, and their calls.
        tensorboard: whether to write the log to TensorBoard as well.
        calibration: share of the training time in which, at its end, settings of the solver "auto" are searched for the
            model; none after less than a minute of training, or with 0.
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
            name, value = item.name, getattr(self, item.name)
            value = value if name in PARTS else _number(value)
            value = int(value) if hints[name] is int and isinstance(value, float) and value % 1 == 0 else value
            value = _part(name, value) if name in PARTS else from_plain(hints[name], value, name)
            object.__setattr__(self, name, value)
        self._check_bounds()

    def _check_bounds(self) -> None:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in COUNTS:
            if values[name] is not None:
                check_whole(name, values[name], 1, MOST_COUNT)
        for name in AT_LEAST_0:
            if values[name] < 0:
                raise UserError(f"{name}={values[name]}: expected at least 0 (0 for never or none)")
        dropout = {f"condition_dropout.{name}": share for name, share in self.condition_dropout.items()}
        for name, share in {**{name: values[name] for name in SHARES}, **dropout}.items():
            check_share(name, share)
        check_positive("lr", self.lr)
        if self.batch % self.accumulate:
            raise UserError(f"batch={self.batch}: not a multiple of accumulate={self.accumulate}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "settings") -> Settings:
        """Make settings from plain values."""
        known = [item.name for item in dataclasses.fields(cls)]
        if not isinstance(values, Mapping):
            raise UserError(f"{source}: expected settings as 'name: value' lines")
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
        """Return the settings as plain values, which ``from_dict`` reads."""
        values: dict[str, Any] = to_plain(self)
        return values

    def with_whole_path(self) -> Settings:
        """Return the settings with absolute paths, so that the run can be resumed from any directory."""
        name = str(self.data["name"])
        data = self.data if name in names() else {**self.data, "name": _whole_path(name)}
        return dataclasses.replace(self, data=data, start=self.start and _whole_path(self.start))

    def override(self, changes: Mapping[str, Any] | Iterable[str]) -> Settings:
        """Return the settings with changes, {"lr": 1e-3, "network.width": 256} or ["lr=1e-3", "network.width=256"].

        ``network`` replaces the network, ``network.width`` one of its parameters; further dots name nested parameters,
        such as flow.schedule.beta_1.
        """
        if not isinstance(changes, Mapping):
            changes = dict(parse_change(change) for change in changes)
        values = self.to_dict()
        for key, value in changes.items():
            part, dot, parameter = key.partition(".")
            if not dot:
                values[key] = value
            elif part in PARTS:
                parameter = "name" if key == "data.path" else parameter  # ``path`` means ``name``
                values[part] = _with(values[part], parameter.split("."), value)
            else:
                raise UserError(f"{key}: only {', '.join(PARTS)} have parameters of their own")
        return Settings.from_dict(values, "settings")


def _whole_path(name: str) -> str:
    """Return the absolute path if the name is a path of something that exists, otherwise the name."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and not path.is_absolute() else name


def _with(values: Any, keys: Sequence[str], value: Any) -> Any:
    """Return nested values with the one at these keys changed."""
    if not keys:
        return value
    own = values if isinstance(values, Mapping) else {}
    return {**own, keys[0]: _with(own.get(keys[0]), keys[1:], value)}


def read_settings(path: Path | str) -> Settings:
    """Read settings from a .yaml, .yml, .toml or .json file."""
    path = Path(path)
    try:
        text = read_text(path)
    except (FileNotFoundError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else "not a text file"
        raise UserError(f"{path}: {reason}: expected settings as .yaml, .toml or .json") from None
    return _parsed(text, path.suffix, str(path))


def recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package."""
    return tuple(sorted(Path(entry.name).stem for entry in RECIPES.iterdir() if entry.name.endswith(".yaml")))


def recipe(name: str) -> Settings:
    """Return the settings of a recipe, such as those that reproduce a bundled model."""
    if name not in recipes():
        raise UserError(f"recipe {name!r}: expected one of {', '.join(recipes())}{did_you_mean(name, recipes())}")
    return _parsed(RECIPES.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), ".yaml", f"recipe {name}")


def differences(ours: Settings, theirs: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by name, as pairs."""
    left, right = ours.to_dict(), theirs.to_dict()
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def moved(before: Config, now: Config) -> bool:
    """Return True if data differ in their path alone, and nothing is at the old path."""
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
    return Settings.from_dict(values, source)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {error}") from None


def parse_change(change: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE. The value is read as YAML."""
    key, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"{change!r}: expected name=value, such as lr=1e-3 or network.width=256")
    return key.strip(), _number(_yaml(value))


def _part(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UserError(f"{name}={value!r}: expected a name, or a mapping with a 'name' and its parameters")
    return {key: item if isinstance(item, Mapping | list) else _number(item) for key, item in value.items()}


def _number(value: Any) -> Any:
    """Return strings that are numbers as floats: YAML 1.1 reads 1e-3 as a string."""
    if isinstance(value, str) and value.lstrip("+-.")[:1].isdigit():
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, Mapping):
        return {str(key): _number(item) for key, item in value.items()}
    return [_number(item) for item in value] if isinstance(value, list | tuple) else value
