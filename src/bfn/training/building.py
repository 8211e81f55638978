"""What a run is made of, from its settings and data: model, optimiser, learning rate, averaged weights."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bfn import networks, storage
from bfn.errors import UserError
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.model import BFN
from bfn.training import muon as optim
from bfn.training.batches import Source, derived_seed
from bfn.training.settings import Settings


def build_model(settings: Settings, source: Source) -> BFN:
    """The model of the settings, with the sizes that follow from the data; its weights follow from the seed."""
    flow = make_flow(settings, source)
    head = storage.make_head(with_data_std(settings.head, "preconditioned", source), flow)
    name = settings.network["name"]
    sizes = {"in_channels": source.data_shape[0], "n_labels": source.n_labels}
    if isinstance(flow, DiscreteFlow):
        sizes["n_classes"] = flow.n_classes
    if source.n_labels and name in networks.NETWORKS and not networks.accepts(name, "n_labels"):
        raise UserError(f"network {name}: takes no labels, and the data have {source.n_labels}; set data.labels=false")
    config = {**{key: size for key, size in sizes.items() if networks.accepts(name, key)}, **settings.network}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derived_seed(settings.seed, "weights"))
        network = networks.build(config)
    return BFN(network, flow, head, source.data_shape)


def make_flow(settings: Settings, source: Source) -> Flow:
    """The flow of the settings."""
    options = {key: value for key, value in settings.flow.items() if key != "name"}
    kinds: dict[str, tuple[str, ...]] = {"continuous": ("sigma_1",), "discrete": ("beta_1", "n_classes")}
    name = settings.flow["name"]
    if name not in kinds:
        raise UserError(f"flow {name!r}: expected one of {', '.join(kinds)}")
    foreign = [key for key in options if key not in kinds[name]]
    if foreign:
        raise UserError(f"flow.{foreign[0]}: a {name} flow has {', '.join(kinds[name])}")
    if name == "continuous":
        return ContinuousFlow(**options)
    return DiscreteFlow(**{"n_classes": source.n_classes, **options})


def make_optimiser(settings: Settings, model: BFN) -> torch.optim.Optimizer:
    """The optimiser of the settings. Weight decay is for matrices and kernels: biases and norms get none."""
    if settings.optimiser == "muon":
        matrices, rest = optim.split(model)
        return optim.Muon(matrices, rest, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
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


def warm_average(decay: float) -> Any:
    """torch's average whose decay starts low, so that early steps are soon forgotten."""

    def average(averaged: list[Tensor], current: list[Tensor], n: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(n)) / (10 + int(n))))(averaged, current, n)  # type: ignore[no-untyped-call]

    return average


def with_data_std(config: Mapping[str, Any], name: str, source: Source) -> dict[str, Any]:
    """The part with data_std measured on the data, where it is the named one and leaves it out."""
    if config["name"] != name or "data_std" in config:
        return dict(config)
    x, _ = source.first(1024)
    return {**config, "data_std": round(float(x.float().std()), 4)}
