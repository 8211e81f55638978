"""What a run is made of, from its settings and data: model, optimiser, learning rate, averaged weights."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from bfn.core.plain import from_plain
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.heads import HEADS, Head
from bfn.joint import JointFlow
from bfn.model import BFN, load
from bfn.networks import Transformer
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.schedules import Schedule
from bfn.seeds import derived_seed
from bfn.training import muon
from bfn.training.opening import flow_type
from bfn.training.own_networks import build_network
from bfn.training.settings import Settings
from bfn.training.source import ImageSource, RecordSource, Source, TextSource
from bfn.weightings import WEIGHTINGS, Weighting

__all__ = [
    "begin_with", "build_model", "count_chains", "learning_rate", "make_optimiser", "make_weighting",
]  # fmt: skip

RecipeSource = ImageSource | TextSource | RecordSource
"""A source with the sizes that a network is built from."""

MOST_COUNTED = 2**26
"""Symbols of the data that a chain is counted in, at most."""


def build_model(settings: Settings, source: RecipeSource) -> BFN:
    """The model of the settings, with what follows from the data: its sizes and its info.

    Its weights follow from the seed.
    """
    flow, info = _flow(settings.flow, source.n_values), source.info()
    head = from_plain(Head, _with_data_std(settings.head, HEADS, source), "head")
    flow = flow.for_shape(source.data_shape)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derived_seed(settings.seed, "weights"))
        network = build_network(settings.network, flow, head, source.data_shape, info)
    model = BFN(network, flow, head, source.data_shape, info)
    count_chains(model, source)
    return model


class HasFirst(Protocol):
    """Data of which some can be had that are always the same."""

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples and their conditions."""


def count_chains(model: BFN, source: HasFirst) -> None:
    """Count the chains of symbols of a model's network, if it has any that were not counted yet, in its data."""
    chains = [layer for layer in model.modules() if isinstance(layer, NGramPosterior) and not layer.counted]
    if not chains:
        return
    x, conditions = source.first(MOST_COUNTED // source.first(1)[0].numel())
    x = x.masked_fill(~conditions["present"], -1) if "present" in conditions else x
    for chain in chains:
        chain.count(x)


def begin_with(model: BFN, start: str) -> None:
    """Give a model the weights of a stored one, whose network must be of its sizes."""
    stored = load(start)
    if isinstance(model.network, Transformer) and isinstance(stored.network, Transformer):
        theirs = {f"network.{name}": value for name, value in model.network.grown(stored.network.state_dict()).items()}
    else:
        theirs = stored.state_dict()
    ours = model.state_dict()
    other = next((name for name in (*ours, *theirs) if _shape(ours.get(name)) != _shape(theirs.get(name))), None)
    if other is not None:
        raise UserError(
            f"start={start}: weights {other} are {_shape(theirs.get(other))} there and {_shape(ours.get(other))} here; "
            f"expected a model with the same network, on the same kind of data"
        )
    model.load_state_dict(theirs)


def _shape(weights: Tensor | None) -> str:
    return "absent" if weights is None else f"({', '.join(map(str, weights.shape))})"


def make_weighting(settings: Settings, source: Source) -> Weighting:
    """The weighting of the settings."""
    weighting: Weighting = from_plain(Weighting, _with_data_std(settings.weighting, WEIGHTINGS, source), "weighting")
    return weighting


def _flow(config: Mapping[str, Any], n_values: Any) -> Flow:
    """A flow from the arguments it is made with; the number of its classes follows from the data."""
    if config["name"] == "joint":
        parts, options = config.get("parts", {}), {key: config[key] for key in config if key not in ("name", "parts")}
        foreign = next((key for key in options if key != "times"), None)
        if foreign is not None:
            one = next(iter(n_values), "PART")
            raise UserError(
                f"flow.{foreign}: a joint flow has parts and times; of one part it is flow.parts.{one}.{foreign}"
            )
        wrong = next((name for name in (*n_values, *parts) if (name in parts) != (name in n_values)), None)
        if wrong is not None or not isinstance(n_values, Mapping):
            raise UserError(f"flow.parts {', '.join(parts)}: expected one for each of {', '.join(n_values)}")
        return JointFlow({name: _flow(parts[name], n_values[name]) for name in n_values}, **options)
    kind = flow_type(config["name"])
    known = inspect.signature(kind).parameters
    options = {key: value for key, value in config.items() if key != "name"}
    foreign = next((key for key in options if key not in known), None)
    if foreign is not None:
        raise UserError(f"flow.{foreign}: a {config['name']} flow has {', '.join(known)}")
    if "schedule" in options:
        options["schedule"] = from_plain(Schedule, options["schedule"], "flow.schedule")
    if "n_classes" in known:
        options.setdefault("n_classes", n_values)
    return kind(**options)


def _with_data_std(config: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """A part with ``data_std`` measured on the data, where it has such a field and the config leaves it out."""
    part = known.get(config["name"])
    if part is None or "data_std" in config or "data_std" not in {field.name for field in dataclasses.fields(part)}:
        return config
    x, _ = source.first(1024)
    return {**config, "data_std": round(float(x.float().std()), 4)}


def make_optimiser(settings: Settings, model: BFN) -> torch.optim.Optimizer:
    """The optimiser of the settings. Weight decay is for matrices and kernels: biases and norms get none."""
    if settings.optimiser == "muon":
        matrices, rest = muon.split(model)
        return muon.Muon(matrices, rest, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": settings.weight_decay}]
    if settings.weight_decay:
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
    fused = model.device.type in ("cpu", "cuda")
    return torch.optim.AdamW([group for group in groups if group["params"]], settings.lr, settings.betas, fused=fused)


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up, a flat stretch up to decay_from, then a cosine down to final_lr times the peak."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    start = max(settings.warmup, round(settings.decay_from * settings.steps))
    progress = min(1.0, max(0.0, (step - start) / max(1, settings.steps - start)))
    return settings.lr * (settings.final_lr + (1 - settings.final_lr) * (1 + math.cos(math.pi * progress)) / 2)
