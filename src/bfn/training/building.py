"""Data, networks, models and optimisers from the settings of a run, and default settings for data."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bfn import data, networks
from bfn._utils.pieces import derived_seed
from bfn.core.conditions import CLASSES, CONDITIONS, Condition
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import FLOWS, REST, Flow, PartFlow
from bfn.core.heads import HEADS, Head
from bfn.core.info import ModelInfo
from bfn.core.joint import JointFlow, JointHead
from bfn.core.losses import WEIGHTINGS, Weighting, weighting_of
from bfn.core.model import BFN
from bfn.core.plain import from_plain
from bfn.core.schedules import Schedule
from bfn.data.images import Images, concatenate
from bfn.data.loading import COLUMN_OPTIONS, columns_of, info_of_records, n_values_of, record_lengths
from bfn.data.records import Numbers, Records
from bfn.data.text import Text
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.networks.transformer import Transformer
from bfn.storage import models as storage
from bfn.storage.models import load
from bfn.training.settings import Settings
from bfn.training.source import ImageSource, RecordSource, Source, TextSource

# --- data --------------------------------------------------------------------------------------------------

RecipeSource = ImageSource | TextSource | RecordSource
"""A source with the sizes that a network is built from."""

RECIPE_OPTIONS: Mapping[type, tuple[str, ...]] = {
    Images: ("levels", "centres", "binarise", "labels", "flip", "whole"),
    Text: ("length", "tokenizer"),
    Records: (*COLUMN_OPTIONS, "tokenizer"),
}
"""Options of ``data`` in a recipe, besides the name, for each kind of data."""


def open_recipe_data(
    config: Mapping[str, Any], flow: str, part: data.Part, progress: bool = True, like: Source | None = None
) -> RecipeSource:
    """Load the data of a recipe.

    Args:
        config: {"name": a standard data set or a path, and options}.
        flow: name of the recipe's flow.
        part: part of the data set.
        progress: whether to show progress.
        like: source of another part of the same data, whose scale records are brought to.
    """
    name, options = config["name"], {key: value for key, value in config.items() if key != "name"}
    columns = columns_of(options)
    loaded = data.load(name, part, tokenizer=options.get("tokenizer"), columns=columns, progress=progress)
    known = RECIPE_OPTIONS[type(loaded)]
    foreign = next((key for key in options if key not in known), None)
    if foreign is not None:
        raise UserError(f"data.{foreign}: {name} is {type(loaded).__name__.lower()}, which take {', '.join(known)}")
    if isinstance(loaded, Records):
        return _open_records(loaded, name, flow, like)
    kind = FLOWS.find(flow)
    floats = issubclass(kind, PartFlow) and kind.has_range
    if isinstance(loaded, Text):
        if floats:
            raise UserError(f"data {name!r} is text: give flow discrete, not {flow}")
        length = int(options.get("length", 256))
        if not 1 <= length <= len(loaded):
            raise UserError(f"data.length={length}: the text's {part} part has {len(loaded)} characters")
        return TextSource(loaded, length)
    if options.get("whole") and part == "train":
        loaded = concatenate(loaded, cast(Images, data.load(name, "validation", progress=progress)))
    return _open_images(loaded, options, floats)


def _open_images(images: Images, options: Mapping[str, Any], floats: bool) -> ImageSource:
    labelled = bool(options.get("labels", True)) and images.labels is not None
    redrawn = options.get("binarise") == "dynamic"
    images = images.prepared({**options, "binarise": False} if redrawn else options)
    return ImageSource(images, floats, labelled, redrawn, bool(options.get("flip")))


def _open_records(records: Records, name: str, flow: str, like: Source | None) -> RecordSource:
    """Make the source of records; raise a UserError if the flow is for another kind of data."""
    facts = like.facts if isinstance(like, RecordSource) else info_of_records(records)
    source = RecordSource(records, facts)
    kinds = n_values_of(records)
    fitting = "joint" if len(kinds) > 1 else "continuous" if source.n_values is None else "discrete"
    if flow != fitting:
        raise UserError(f"data {name!r} has samples of {', '.join(kinds)}: give flow {fitting}, not {flow}")
    return source


# --- networks ---------------------------------------------------------------------------------------------------------

LEAST_LENGTH = 256
"""Smallest ``max_length`` that a transformer is built with: longer sequences may come later."""


def build_network(config: Mapping[str, Any], flow: Flow, head: Head, data_shape: Any, info: ModelInfo) -> nn.Module:
    """Build the network of a config, {"name": one of ``bfn.networks`` or "module:Class", arguments}.

    Of these sizes it gets the ones that it takes and the config leaves out: data_shape, n_labels, conditions,
    n_classes, in_features, out_features, in_channels, max_length.
    """
    name, is_own = config["name"], ":" in config["name"]
    make = _import_class(name) if is_own else networks.NETWORKS.find(name, "network (or module:Class of your own)")
    taken, sizes = inspect.signature(make).parameters, _sizes(flow, head, data_shape, info)
    if name == "transformer" and sizes["n_classes"]:  # the numbers of features are for data that are numbers
        sizes |= {"in_features": None, "out_features": None}
    arguments = {key: size for key, size in sizes.items() if key in taken and size is not None}
    arguments |= {key: value for key, value in config.items() if key != "name"}
    if is_own:
        return _build_own(name, make, arguments)
    _check_conditions(name, taken, info)
    return networks.build({"name": name, **arguments})


def _build_own(name: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    """Build a network of a class of the user."""
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters)
        raise UserError(f"network {name}: {error}; its arguments are {known}") from None
    network = make(**arguments)
    if not isinstance(network, nn.Module):
        raise UserError(f"network {name}: made a {type(network).__name__}: expected a torch.nn.Module")
    return network


def _check_conditions(name: str, taken: Mapping[str, Any], info: ModelInfo) -> None:
    """Raise a UserError if the data have labels or conditions and the network takes none."""
    found = {"n_labels": ("labels", info[CLASSES], "data.labels=false"),
             "conditions": ("conditions", info[CONDITIONS], "data.conditions=[]")}  # fmt: skip
    for argument, (what, values, change) in found.items():
        if values and argument not in taken:
            raise UserError(f"network {name}: takes no {what}, and the data have {len(values)}; set {change}")


def load_with_network(name: str, network: str) -> BFN:
    """Load a stored model whose network is a class of the user, "module:Class", with the arguments of its training."""
    stored, info = storage.read_config(name), storage.read_info(name)
    settings = info.card.get("settings")
    known = settings.get("network") if isinstance(settings, Mapping) else None
    arguments = dict(known) if isinstance(known, Mapping) else {}
    shape = stored["data_shape"]
    data_shape = {part: tuple(own) for part, own in shape.items()} if isinstance(shape, dict) else tuple(shape)
    flow = from_plain(Flow, stored["flow"], "flow").for_shape(data_shape)
    head = from_plain(Head, stored["head"], "head")
    return load(name, build_network({**arguments, "name": network}, flow, head, data_shape, info))


def _sizes(flow: Flow, head: Head, data_shape: Any, info: ModelInfo) -> dict[str, Any]:
    """Return the sizes that follow from the data, by the names of network arguments; None if they do not apply."""
    sizes: dict[str, Any] = {
        "data_shape": data_shape,
        "n_labels": len(info[CLASSES] or ()),
        "conditions": {name: _declare(one) for name, one in info[CONDITIONS].items()} or None,
        "n_classes": 0,
    }
    if "" in flow.parts:
        sizes |= {"n_classes": flow.leading.n_values or 0, "max_length": max(LEAST_LENGTH, data_shape[0])}
        return {**sizes, "in_channels": data_shape[0], "in_features": data_shape[-1]}
    if isinstance(head, JointHead) and head.flat:
        state = {name: own.state_shape(data_shape[name]) for name, own in flow.parts.items()}
        outputs = (math.prod(head.parts[name].raw_shape(shape)) for name, shape in state.items())
        sizes |= {"in_features": sum(map(math.prod, state.values())), "out_features": sum(outputs)}
    return sizes


def _declare(condition: Condition) -> dict[str, Any]:
    """Describe a condition to a network: its shape, and its number of classes or its mean and spread in the data."""
    shape = list(condition.shape)
    if condition.n_classes:
        return {"shape": shape, "n_classes": condition.n_classes}
    values = torch.tensor(condition.examples, dtype=torch.float64).reshape(-1, *condition.shape)
    values = values[values.isfinite().view(len(values), math.prod(condition.shape)).all(1)]
    if not len(values):
        return {"shape": shape}
    mean, std = values.mean(0), values.std(0, correction=0)
    std = torch.where(std > 1e-6 * mean.abs(), std, 1.0)
    return {"shape": shape, "mean": mean.tolist(), "std": std.tolist()}


def _import_class(name: str) -> Callable[..., Any]:
    """Import the class of "module:Class"; the module is a file, or a name in the current directory or installed."""
    module, _, attribute = name.rpartition(":")
    path = Path(module).expanduser()
    try:
        loaded = _load_file(name, path) if path.suffix == ".py" else _load_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        expected = "expected module:Class or file.py:Class"
        raise UserError(f"network {name!r}: no module {module!r} here or installed; {expected}") from None
    found: Callable[..., Any] | None = getattr(loaded, attribute, None)
    if not callable(found):
        known = [key for key, value in vars(loaded).items() if inspect.isclass(value)]
        raise UserError(f"network {name!r}: {module} has no class {attribute!r}{did_you_mean(attribute, known)}")
    return found


def _load_file(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"network {name!r}: {path}: no such file; expected module:Class or file.py:Class")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, loaded)
    spec.loader.exec_module(loaded)
    return loaded


def _load_module(module: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(here)


# --- models -----------------------------------------------------------------------------------------------------------

MOST_COUNTED = 2**26
"""Maximum number of symbols of the data from which n-grams are counted."""


def build_model(settings: Settings, source: RecipeSource) -> BFN:
    """Build the model of the settings, with the sizes and facts of the data. Its weights follow from the seed."""
    flow, info = _flow(settings.flow, source.n_values), source.facts.replace()
    head = from_plain(Head, _with_data_std(settings.head, HEADS, source), "head")
    flow = flow.for_shape(source.data_shape)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derived_seed(settings.seed, "weights"))
        network = build_network(settings.network, flow, head, source.data_shape, info)
    model = BFN(network, flow, head, source.data_shape, info)
    count_chains(model, source)
    return model


def count_chains(model: BFN, source: Source) -> None:
    """Count the n-grams of the data for the layers of a network that need them and were not counted yet."""
    chains = [layer for layer in model.modules() if isinstance(layer, NGramPosterior) and not layer.counted]
    if not chains:
        return
    x, conditions = source.first(MOST_COUNTED // source.first(1)[0].numel())
    x = x.masked_fill(~conditions["present"], -1) if "present" in conditions else x
    for chain in chains:
        chain.count(x)


def begin_with(model: BFN, start: str) -> None:
    """Load the weights of a stored model, whose network must have the same sizes."""
    stored = load(start)
    if isinstance(model.network, Transformer) and isinstance(stored.network, Transformer):
        theirs = {f"network.{name}": value for name, value in model.network.grown(stored.network.state_dict()).items()}
    else:
        theirs = stored.state_dict()
    ours = model.state_dict()
    other = next((name for name in (*ours, *theirs) if _shape(ours.get(name)) != _shape(theirs.get(name))), None)
    if other is not None:
        there, here = _shape(theirs.get(other)), _shape(ours.get(other))
        raise UserError(f"start={start}: weights {other} are {there} there and {here} here; expected the same network")
    model.load_state_dict(theirs)


def _shape(weights: Tensor | None) -> str:
    return "absent" if weights is None else f"({', '.join(map(str, weights.shape))})"


def make_weighting(settings: Settings, source: Source, model: BFN) -> Weighting:
    """Make the weighting of the settings; for joint data that of each part."""
    weighting: Weighting = from_plain(Weighting, _with_data_std(settings.weighting, WEIGHTINGS, source), "weighting")
    return weighting_of(model, weighting)


def _flow(config: Mapping[str, Any], n_values: Any, place: str = "flow") -> Any:
    """Make a flow from its config. The numbers of classes follow from the data."""
    options = dict(config)
    name = options.pop("name")
    kind = FLOWS.find(name, place)
    parts = n_values if isinstance(n_values, Mapping) else {}
    known = ("parts", "times") if kind is JointFlow else tuple(inspect.signature(kind).parameters)
    foreign = next((key for key in options if key not in known), None)
    if foreign is not None:
        hint = "".join(f"; of one part it is flow.parts.{part}.{foreign}" for part in list(parts)[:1])
        raise UserError(f"{place}.{foreign}: a {name} flow has {', '.join(known)}{hint}")
    if kind is JointFlow:
        own = options.pop("parts", {})
        if not parts or set(own) != set(parts):
            raise UserError(f"{place}.parts {', '.join(own)}: expected one for each of {', '.join(parts)}")
        options["flows"] = {part: _flow(own[part], n, f"{place}.parts.{part}") for part, n in parts.items()}
    if "schedule" in options:
        options["schedule"] = from_plain(Schedule, options["schedule"], f"{place}.schedule")
    if "n_classes" in known:
        options.setdefault("n_classes", n_values)
    return kind(**options)


def _with_data_std(config: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """Return the config with ``data_std`` measured on the data, if its class has this field and the config has not."""
    kind = known.get(config["name"])
    if kind is None or "data_std" in config or "data_std" not in {field.name for field in dataclasses.fields(kind)}:
        return config
    x, _ = source.first(1024)
    return {**config, "data_std": round(float(x.float().std()), 4)}


# --- optimisers -------------------------------------------------------------------------------------------------------


def make_optimiser(settings: Settings, model: BFN) -> torch.optim.Optimizer:
    """Make the optimiser of the settings. Weight decay applies to matrices and kernels, not to biases and norms."""
    if settings.optimiser == "muon":
        matrices, rest = split(model)
        return Muon(matrices, rest, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    parameters, decay = list(model.parameters()), settings.weight_decay
    decayed = [p for p in parameters if p.ndim > 1 or not decay]
    rest = [p for p in parameters if p.ndim <= 1 and decay]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    fused = model.device.type in ("cpu", "cuda")
    return torch.optim.AdamW([group for group in groups if group["params"]], settings.lr, settings.betas, fused=fused)


def learning_rate(settings: Settings, step: int, steps: int | None = None) -> float:
    """Return the learning rate of a step (from 0).

    It rises linearly over ``warmup`` steps, is flat up to the share ``decay_from`` of the steps, and falls along a
    cosine to ``final_lr`` times the peak.

    Args:
        settings: settings of the run.
        step: number of the step.
        steps: number of steps that the run is expected to take, if a time budget ends it sooner.
    """
    steps = settings.steps if steps is None else min(steps, settings.steps)
    warmup = min(settings.warmup, steps // 2) if steps < settings.steps else settings.warmup
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    start = max(warmup, round(settings.decay_from * steps))
    progress = min(1.0, max(0.0, (step - start) / max(1, steps - start)))
    return settings.lr * (settings.final_lr + (1 - settings.final_lr) * (1 + math.cos(math.pi * progress)) / 2)


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of a x + b x^3 + c x^5, whose iteration brings singular values quickly into [0.7, 1.2]."""

ADAMW_LAYERS = ("stem", "head", "conditioning", "modulation")
"""First, last and conditioning layers of networks. They are tables of vectors, so AdamW trains them."""


def orthogonalise(matrices: Tensor, n_steps: int = 5) -> Tensor:
    """Return approximately U V^T of each matrix U S V^T, (..., rows, columns), with singular values in [0.7, 1.2].

    The Newton-Schulz iteration runs in the type of the input: bfloat16 is emulated on a CPU and far slower there.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-2, -1) if tall else x


def split(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the inner matrices of a network, which Muon trains, and the other parameters, which AdamW trains."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        inner = parameter.ndim >= 2 and not any(part in ADAMW_LAYERS for part in name.split("."))
        (matrices if inner else rest).append(parameter)
    return matrices, rest


class Muon(torch.optim.AdamW):
    """Muon for matrices and AdamW for the rest, as one optimiser with one learning rate.

    Muon orthogonalises the momentum of each matrix (Jordan et al. 2024). Its steps are scaled by
    0.2 sqrt(max(rows, columns)), the typical size of AdamW's steps (Liu et al. 2025), so that the learning rate and its
    schedule serve both. Convolutions count as matrices of (out, in * kernel).

    Args:
        matrices, rest: parameters, as ``split`` finds them in a network.
        lr: learning rate.
        momentum: decay of the Nesterov momentum of the matrices.
        betas, eps: options of AdamW.
        weight_decay: decoupled decay of the matrices; the rest is not decayed.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], rest: Iterable[nn.Parameter] = (), lr: float = 1e-3,
        momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "matrices": True, "momentum": momentum, "weight_decay": weight_decay},
            {"params": list(rest), "matrices": False, "weight_decay": 0.0},
        ]
        vector = next((tuple(each.shape) for each in groups[0]["params"] if each.ndim < 2), None)
        if vector is not None:
            raise UserError(f"a parameter of shape {vector} among the matrices: give it as one of the rest")
        super().__init__([group for group in groups if group["params"]], lr, betas, eps)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step. If a closure is given, it computes the loss, which is returned."""
        loss, groups = None if closure is None else torch.enable_grad()(closure)(), self.param_groups
        for group in groups:
            if group["matrices"]:
                self._muon(group)
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                # AdamW asks for the step of each parameter when it loads a state.
                state.update(momentum=torch.zeros_like(parameter), step=torch.zeros(()))
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(state["momentum"], group["momentum"]).flatten(1)
            by_shape.setdefault((update.shape[0], update.shape[1]), []).append((parameter, update))
        for shape, pairs in by_shape.items():
            # Matrices of the same shape go through the iteration together, in fewer and larger products.
            updates = orthogonalise(torch.stack([update for _, update in pairs]))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(update.view_as(parameter), alpha=0.2 * math.sqrt(max(shape)) * group["lr"])


# --- default settings -------------------------------------------------------------------------------------------------

NUMBERS = {
    "flow": {"name": "continuous", "sigma_1": REST},
    "head": {"name": "preconditioned", "data_std": 1.0},
    "weighting": {"name": "edm", "data_std": 1.0},
}
"""Defaults for numbers with mean 0 and standard deviation 1, such as those of records."""

SYMBOLS = {"flow": {"name": "discrete"}, "head": {"name": "logits"}, "weighting": {"name": "cross-entropy"}}
"""Defaults for classes."""

PERCEPTRON = {"name": "mlp", "width": 256, "n_blocks": 4}
TRANSFORMER = {"name": "transformer", "width": 128, "n_blocks": 4, "n_heads": 4}

LONGEST = 256
"""Maximum number of characters of a text in one sample, by default."""


def default_settings(config: Mapping[str, Any], network: str | None = None) -> Settings:
    """Return settings that suit the data.

    Args:
        config: data of the run, {"name": a standard data set or a path, and options}.
        network: one of ``bfn.networks``, or "module:Class", instead of the default network.
    """
    loaded = data.load(config["name"], "train", tokenizer=config.get("tokenizer"), columns=columns_of(config))
    chosen = (
        _for_images(loaded) if isinstance(loaded, Images)
        else _for_text(loaded, config) if isinstance(loaded, Text)
        else _for_records(loaded, network)
    )  # fmt: skip
    if network is not None:
        chosen["network"] = {"name": network}
    return Settings.from_dict({"data": dict(config), "warmup": 100, **chosen}, str(config["name"]))


def _for_images(images: Images) -> dict[str, Any]:
    _, height, width = images.data_shape
    levels = 1
    while levels < 3 and min(height, width) >= 8 * 2**levels and not (height % 2**levels or width % 2**levels):
        levels += 1
    channels = 32 if max(height, width) <= 16 else 64
    network = {"name": "unet", "channels": channels, "multipliers": [1, 2, 2][:levels], "n_blocks": 1}
    network["attention_levels"] = [levels - 1]
    flow = {"flow": {"name": "continuous", "sigma_1": 0.001}, "head": {"name": "preconditioned"}}
    return {**flow, "weighting": {"name": "edm"}, "network": network, "steps": 5000}


def _for_text(text: Text, config: Mapping[str, Any]) -> dict[str, Any]:
    # The held-out parts have 5 % of the text each and must hold several samples.
    length = int(config.get("length", min(LONGEST, max(8, len(text) // 100))))
    return {**SYMBOLS, "network": TRANSFORMER, "data": {**config, "length": length}}


def _for_records(records: Records, network: str | None) -> dict[str, Any]:
    parts = {name: NUMBERS if isinstance(own, Numbers) else SYMBOLS for name, own in records.samples.items()}
    record_lengths(records)  # raises if the lengths of the columns differ
    if len(parts) > 1:
        kinds = ("flow", "head", "weighting")
        joint: dict[str, dict[str, Any]] = {
            kind: {"name": "joint", "parts": {name: own[kind] for name, own in parts.items()}} for kind in kinds
        }
        joint["head"]["flat"] = network in (None, "mlp")
        return {**joint, "network": PERCEPTRON, "batch": 256}
    ((name, own),) = parts.items()
    column = records.samples[name]
    if isinstance(column, Numbers) and column.values.ndim < 3:
        return {**own, "network": PERCEPTRON, "batch": 256}
    return {**own, "network": TRANSFORMER}
