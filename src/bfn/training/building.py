"""Muon in float32: momentum, orthogonalised matrix by matrix (Jordan et al., 2024), and AdamW for the rest."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bfn import data
from bfn._utils.pieces import derived_seed
from bfn.core.errors import UserError
from bfn.core.flows import REST, Flow
from bfn.core.heads import HEADS, Head
from bfn.core.joint import JointFlow
from bfn.core.losses import WEIGHTINGS, Weighting
from bfn.core.model import BFN, load
from bfn.core.plain import from_plain
from bfn.core.schedules import Schedule
from bfn.data.encoding import columns_of, record_lengths
from bfn.data.images import Images
from bfn.data.records import Numbers, Records
from bfn.data.text import Text
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.networks.transformer import Transformer
from bfn.training.opening import flow_type
from bfn.training.own_networks import build_network
from bfn.training.settings import Settings
from bfn.training.source import ImageSource, RecordSource, Source, TextSource

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic a x + b x^3 + c x^5 whose iterates bring singular values fast, if not exactly, to 1: into [0.7, 1.2]."""

ADAMW_LAYERS = ("stem", "head", "conditioning", "modulation")
"""First, last and conditioning layers of the networks here: tables of vectors rather than maps, left to AdamW."""


def orthogonalise(matrices: Tensor, n_steps: int = 5) -> Tensor:
    """U V^T of each matrix U S V^T of (..., rows, columns), to within the singular values' range [0.7, 1.2].

    Newton-Schulz iteration in the type of the input. float32 on CPU: bfloat16 is emulated there, and far slower.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x  # type: ignore[no-any-return]


def split(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of a network as (matrices inside it, the rest): what Muon and what AdamW should train."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        inner = parameter.ndim >= 2 and not any(part in ADAMW_LAYERS for part in name.split("."))
        (matrices if inner else rest).append(parameter)
    return matrices, rest


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for the rest, as one optimiser with one learning rate.

    Steps of matrices are scaled by 0.2 sqrt(max(rows, columns)), which gives them the typical size of AdamW's
    (Liu et al., 2025), so that the learning rate and its schedule serve both. Convolutions count as matrices of
    (out, in * kernel).

    matrices, rest: as `split` finds them in a network. momentum: decay of the matrices' (Nesterov) momentum.
    betas, eps: AdamW's. weight_decay: decoupled decay of the matrices; the rest is not decayed.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        rest: Iterable[nn.Parameter] = (),
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0:
            raise UserError(f"lr={lr}: expected a learning rate of at least 0")
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "matrices": True, "weight_decay": weight_decay},
            {"params": list(rest), "matrices": False, "weight_decay": 0.0},
        ]
        for parameter in groups[0]["params"]:
            if parameter.ndim < 2:
                shape = tuple(parameter.shape)
                raise UserError(f"a parameter of shape {shape} among the matrices: give it as one of the rest")
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step; closure, if given, recomputes and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            (self._muon if group["matrices"] else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(state["momentum"], group["momentum"]).flatten(1)
            by_shape.setdefault((update.shape[0], update.shape[1]), []).append((parameter, update))
        for shape, pairs in by_shape.items():
            # Matrices of one shape go through the iteration together: fewer, larger products.
            updates = orthogonalise(torch.stack([update for _, update in pairs]))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(update.view_as(parameter), alpha=0.2 * math.sqrt(max(shape)) * group["lr"])

    def _adamw(self, group: dict[str, Any]) -> None:
        beta_1, beta_2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                zeros = torch.zeros_like(parameter)
                state.update(step=torch.zeros(()), mean=zeros, square=zeros.clone())
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 1 - beta_1)
            state["square"].lerp_(parameter.grad.square(), 1 - beta_2)
            n = state["step"].item()
            scale = (state["square"] / (1 - beta_2**n)).sqrt_().add_(group["eps"])
            parameter.addcdiv_(state["mean"], scale, value=-group["lr"] / (1 - beta_1**n))


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
        matrices, rest = split(model)
        return Muon(matrices, rest, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
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


NUMBERS = {
    "flow": {"name": "continuous", "sigma_1": REST},
    "head": {"name": "preconditioned", "data_std": 1.0},
    "weighting": {"name": "edm", "data_std": 1.0},
}
"""Of numbers that are brought to mean 0 and standard deviation 1, as those of records are."""
CLASSES = {"flow": {"name": "discrete"}, "head": {"name": "logits"}, "weighting": {"name": "cross-entropy"}}
PERCEPTRON = {"name": "mlp", "width": 256, "n_blocks": 4}
TRANSFORMER = {"name": "transformer", "width": 128, "n_blocks": 4, "n_heads": 4}
LONGEST = 256
"""Characters of a text that are learned together."""


def default_settings(config: Mapping[str, Any], network: str | None = None) -> Settings:
    """Settings for the data of a run, {"name": a standard set or a path, and options}.

    network: one of ``bfn.networks``, or "module:Class", instead of the one that suits the data.
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
    network = {
        "name": "unet",
        "channels": 32 if max(height, width) <= 16 else 64,
        "multipliers": [1, 2, 2][:levels],
        "attention_levels": [levels - 1],
        "n_blocks": 1,
    }
    flow = {"flow": {"name": "continuous", "sigma_1": 0.001}, "head": {"name": "preconditioned"}}
    return {**flow, "weighting": {"name": "edm"}, "network": network, "batch": 64, "lr": 1e-3, "steps": 5000}


def _for_text(text: Text, config: Mapping[str, Any]) -> dict[str, Any]:
    # Parts of 5 % are held out, and each must hold some pieces.
    length = int(config.get("length", min(LONGEST, max(8, len(text) // 100))))
    run = {"batch": 64, "lr": 1e-3, "steps": 10_000}
    return {**CLASSES, **run, "network": TRANSFORMER, "data": {**config, "length": length}}


def _for_records(records: Records, network: str | None) -> dict[str, Any]:
    parts = {name: NUMBERS if isinstance(own, Numbers) else CLASSES for name, own in records.samples.items()}
    record_lengths(records)  # refuses what cannot be trained on before anything is made
    if len(parts) > 1:
        kinds = ("flow", "head", "weighting")
        joint: dict[str, dict[str, Any]] = {
            kind: {"name": "joint", "parts": {name: own[kind] for name, own in parts.items()}} for kind in kinds
        }
        joint["head"]["flat"] = network in (None, "mlp")
        return {**joint, "network": PERCEPTRON, "batch": 256, "lr": 1e-3, "steps": 10_000}
    ((name, own),) = parts.items()
    column = records.samples[name]
    vectors = isinstance(column, Numbers) and column.values.ndim < 3
    if vectors:
        return {**own, "network": PERCEPTRON, "batch": 256, "lr": 1e-3, "steps": 10_000}
    return {**own, "network": TRANSFORMER, "batch": 64, "lr": 1e-3, "steps": 10_000}
