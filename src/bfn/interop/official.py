"""The configurations of the original BFN paper and the settings of its released code, in this library's terms.

`PUBLISHED` holds the six configurations that weights were published for; `configuration` translates other settings of
the same kinds, strictly: a setting that would change the network and is not supported is an error, never ignored.

Reference: Graves et al., "Bayesian Flow Networks", 2023, and the repository nnaisense/bayesian-flow-networks.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from bfn import networks
from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, Flow, Shape
from bfn.core.heads import Head, LogitsHead
from bfn.core.info import ModelInfo
from bfn.core.model import BFN
from bfn.data.tokenizers import TEXT8
from bfn.kinds.discretised import ClippedNoiseHead, DiscretisedHead, LogitHead
from bfn.networks.official import OfficialBinaryUNet, OfficialFlatUNet

Options = dict[str, networks.JSON]


@dataclass(frozen=True)
class Configuration:
    """A model of the original paper in this library's terms: what `networks.build` and `BFN` take.

    data: what the model was trained on, as the ``data`` of a training run's settings; without a name where it is not
        known. Evaluation prepares images by it.
    alphabet: the symbols of a text model in the order of their classes.
    """

    network: Mapping[str, networks.JSON]
    flow: Flow
    head: Head
    data_shape: Shape
    data: Mapping[str, networks.JSON]
    alphabet: str | None = None

    def build(self) -> BFN:
        """The model with fresh weights."""
        return BFN(networks.build(self.network), self.flow, self.head, self.data_shape, self.info())

    def info(self, source: str | None = None) -> ModelInfo:
        """What is known of such a model. source: where its weights come from."""
        card: dict[str, Any] = {"settings": {"data": dict(self.data)}}
        if source is not None:
            card["source"] = source
        # The images of the paper are scaled to this range, and its code clips to it.
        value_range = (-1.0, 1.0) if self.flow.has_range and len(self.data_shape) == 3 else None
        return ModelInfo(alphabet=self.alphabet, value_range=value_range, card=card)


def _cifar10(n_bins: int, discretised: bool) -> Configuration:
    network: Options = {
        "name": "official-flat-unet",
        "channels": 3,
        "width": 128,
        "n_blocks": 32,
        "n_heads": 1,
        "groups": 32,
        "n_outputs": 2 if discretised else 1,
        "dropout": 0.1,
    }
    head = DiscretisedHead(n_bins) if discretised else ClippedNoiseHead()
    data: Options = {"name": "cifar10", "labels": False, "centres": True}
    if n_bins < 256:
        data["levels"] = n_bins
    return Configuration(network, ContinuousFlow(math.sqrt({16: 1e-3, 256: 1e-6}[n_bins])), head, (3, 32, 32), data)


PUBLISHED: Mapping[str, Configuration] = {
    "text8_discrete": Configuration(
        {
            "name": "official-transformer",
            "n_classes": 27,
            "length": 256,
            "width": 768,
            "n_layers": 24,
            "n_heads": 12,
            "dropout": 0.0,
        },
        DiscreteFlow(27, 0.75**2),
        LogitsHead(),
        (256,),
        {"name": "text8", "length": 256},
        TEXT8.symbols,
    ),
    "cifar10_continuous_16bins": _cifar10(16, discretised=False),
    "cifar10_continuous_256bins": _cifar10(256, discretised=False),
    "cifar10_discretized_16bins": _cifar10(16, discretised=True),
    "cifar10_discretized_256bins": _cifar10(256, discretised=True),
    "mnist_discrete": Configuration(
        {
            "name": "official-binary-unet",
            "width": 128,
            "multipliers": [1, 2, 2],
            "n_blocks": 2,
            "attention_rates": [8, 16],
            "n_heads": 4,
            "groups": 32,
            "dropout": 0.5,
        },
        DiscreteFlow(2, 3.0**2),
        LogitHead(),
        (1, 28, 28),
        {"name": "mnist", "labels": False, "binarise": "dynamic"},
    ),
}
"""The six published configurations by the name of their settings file."""


class _Section:
    """One part of the original settings, {"class_name": ..., "parameters": {...}}; what is read is taken out of it."""

    def __init__(self, settings: Mapping[str, Any], name: str, class_names: Sequence[str]) -> None:
        part = settings.get(name)
        kinds = {"class_name": str, "parameters": Mapping}
        if not isinstance(part, Mapping) or not all(isinstance(part.get(key), kind) for key, kind in kinds.items()):
            raise UserError(f"settings: {name!r} is {_brief(part)}; expected {{'class_name': ..., 'parameters': ...}}")
        self.name, self.class_name = name, part["class_name"]
        self.parameters: dict[str, Any] = dict(part["parameters"])
        if self.class_name not in class_names:
            raise UserError(f"settings: {name} is {self.class_name!r}; expected {' or '.join(class_names)}")

    def integer(self, name: str) -> int:
        """A required whole number."""
        return int(self._take(name, int))

    def renamed(self, **names: str) -> dict[str, int]:
        """Required whole numbers, each under our name for it."""
        return {ours: self.integer(theirs) for ours, theirs in names.items()}

    def number(self, name: str, default: float | None = None) -> float:
        """A number, required if it has no default."""
        return float(self._take(name, int | float, default))

    def integers(self, name: str) -> list[int]:
        """A required list of whole numbers."""
        values = list(self._take(name, list | tuple))
        if not all(isinstance(value, int) for value in values):
            raise UserError(f"settings: {self.name}.{name}={values!r}; expected whole numbers")
        return values

    def fixed(self, **expected: Any) -> None:
        """Parameters that change the network; only the value that the published files have is supported."""
        for name, value in expected.items():
            actual = self.parameters.pop(name, value)
            if actual != value:
                raise UserError(f"settings: {self.name}.{name}={_brief(actual)}; only {value!r} is supported")

    def ignore(self, *names: str) -> None:
        """Parameters that follow from the rest."""
        for name in names:
            self.parameters.pop(name, None)

    def _take(self, name: str, kind: Any, default: Any = None) -> Any:
        value = self.parameters.pop(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = "expected a value as in the published files"
            raise UserError(f"settings: {self.name}.{name} is {_brief(value)}; {expected}")
        return value


def _brief(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


class _Original:
    """The original settings, and the sections of them that have been read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.sections: list[_Section] = []

    def section(self, name: str, *class_names: str, **fixed: Any) -> _Section:
        """A section, which must be of one of these classes; parameters that are fixed must have these values."""
        section = _Section(self.settings, name, class_names)
        section.fixed(**fixed)
        self.sections.append(section)
        return section


def configuration(settings: str | Mapping[str, Any]) -> Configuration:
    """A configuration from a published name, or from the ``model`` part of an original settings file as a dict."""
    if isinstance(settings, str):
        if settings not in PUBLISHED:
            raise UserError(f"settings={settings!r}: expected one of {', '.join(PUBLISHED)}, or a dict of settings")
        return PUBLISHED[settings]
    original = _Original(settings)
    read = {"GPT": _read_text, "UNetVDM": _read_images, "UNetModel": _read_binary}
    net = original.section("net", *read)
    chosen = read[net.class_name](net, original)
    for section in original.sections:
        if section.parameters:
            left = ", ".join(map(str, section.parameters))
            raise UserError(f"settings: {section.name} has unknown parameters {left}")
    return chosen


def _read_discrete_flow(original: _Original, distribution: str) -> DiscreteFlow:
    flow = original.section(
        "bayesian_flow", "DiscreteBayesianFlow", discretize=False, min_sqrt_beta=1e-10, epsilon=1e-6
    )
    original.section("loss", "DiscreteBayesianFlowLoss")
    original.section("distribution_factory", distribution)
    return DiscreteFlow(flow.integer("n_classes"), flow.number("max_sqrt_beta") ** 2)


def _read_image_adapters(original: _Original, channels: int) -> tuple[Shape, int]:
    """Data shape and outputs a channel."""
    adapter = original.section(
        "input_adapter", "FourierImageInputAdapter", input_channels=channels, add_pos_feats=False
    )
    output = original.section("output_adapter", "OutputAdapter", output_channels=channels)
    adapter.ignore("output_height", "add_mask")
    output.ignore("input_height")
    return (channels, *adapter.integers("input_shape")), output.integer("output_height")


def _read_text(net: _Section, original: _Original) -> Configuration:
    flow = _read_discrete_flow(original, "CategoricalFactory")
    n_classes, width = flow.n_classes, net.integer("n_embd")
    net.fixed(vocab_size=n_classes, skip=True, bias=True, is_causal=False)
    adapter = original.section("input_adapter", "TextInputAdapter", vocab_size=n_classes, learn_pos_embedding=False)
    adapter.fixed(output_size=width)
    if original.settings.get("output_adapter") is not None:
        raise UserError("settings: output_adapter; a GPT network is supported only without one")
    length = adapter.integer("seq_len")
    network: Options = {
        "name": "official-transformer",
        **{"n_classes": n_classes, "length": length, "width": width},
        **net.renamed(n_layers="n_layer", n_heads="n_head"),
        "dropout": net.number("dropout", 0.0),
    }
    alphabet = TEXT8.symbols if n_classes == len(TEXT8) else None
    return Configuration(network, flow, LogitsHead(), (length,), {"length": length}, alphabet)


def _read_images(net: _Section, original: _Original) -> Configuration:
    channels = net.integer("input_channels")
    shape, n_outputs = _read_image_adapters(original, channels)
    net.fixed(use_fourier_features=True, attention_everywhere=False, image_size=shape[-1])
    network: Options = {
        "name": "official-flat-unet",
        "channels": channels,
        **net.renamed(width="embedding_dim", n_blocks="n_blocks", n_heads="n_attention_heads", groups="norm_groups"),
        "n_outputs": n_outputs,
        "dropout": net.number("dropout_prob", 0.1),
    }
    variance = original.section("bayesian_flow", "CtsBayesianFlow").number("min_variance", 1e-6)
    original.section("loss", "CtsBayesianFlowLoss", noise_pred=True, min_loss_variance=-1)
    head = _read_continuous_head(original, n_outputs)
    data: Options = {"centres": True}
    if isinstance(head, DiscretisedHead):
        data["levels"] = head.n_bins
    return Configuration(network, ContinuousFlow(math.sqrt(variance)), head, shape, data)


def _read_continuous_head(original: _Original, n_outputs: int) -> Head:
    factories = ("DeltaFactory", "DiscretizedNormalFactory", "DiscretizedGMMFactory")
    factory = original.section("distribution_factory", *factories)
    head: Head
    if factory.class_name == "DeltaFactory":
        factory.fixed(clip_range=1.0)
        head, fits, expected = ClippedNoiseHead(), n_outputs == 1, "1"
    else:
        factory.fixed(clip=True, min_std_dev=1e-3, max_std_dev=10, min_prob=1e-5, log_dev=True)
        n_bins = factory.integer("num_bins")
        head, fits, expected = DiscretisedHead(n_bins), n_outputs == 2, "2"
        if factory.class_name == "DiscretizedGMMFactory":
            # A mixture of one normal has three numbers in the original, of which the weight says nothing.
            head, fits = DiscretisedHead(n_bins, max(1, n_outputs // 3)), n_outputs % 3 == 0 and n_outputs > 3
            expected = "a multiple of 3 above 3"
    if not fits:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; {factory.class_name} needs {expected}")
    return head


def _read_binary(net: _Section, original: _Original) -> Configuration:
    flow = _read_discrete_flow(original, "BernoulliFactory")
    if flow.n_classes != 2:
        raise UserError(f"settings: bayesian_flow.n_classes={flow.n_classes}; a UNetModel is supported for 2 classes")
    shape, n_outputs = _read_image_adapters(original, 1)
    if n_outputs != 1:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; BernoulliFactory needs 1")
    width = net.integer("model_channels")
    net.fixed(image_size=shape[-1], in_channels=2, out_channels=width, conv_resample=True, dims=2)
    net.fixed(num_heads_upsample=-1, project_input=True, skip=True)
    network: Options = {
        "name": "official-binary-unet",
        "width": width,
        "multipliers": net.integers("channel_mult"),
        "n_blocks": net.integer("num_res_blocks"),
        "attention_rates": net.integers("attention_resolutions"),
        "n_heads": net.integer("num_heads"),
        "groups": 32,
        "dropout": net.number("dropout", 0.0),
    }
    return Configuration(network, flow, LogitHead(), shape, {"binarise": "dynamic"})


NAMED_AT_MOST = 8
"""How many keys of a kind an error message names; the exception itself holds them all."""
KINDS = ("missing", "unexpected", "misshapen")


@dataclass(frozen=True)
class _Names:
    """How the original names what we name: part by part of a dotted key.

    kernel_dims: attention projections were convolutions with kernels of size 1 in this many dimensions.
    block: what stands between the index of a down or up block and its weights.
    """

    parts: Mapping[str, str]
    kernel_dims: int = 0
    block: str = ""

    def key(self, ours: str) -> str:
        """The original key of one of our keys."""
        parts = ours.split(".")
        renamed = [self.parts.get(part, part) for part in parts]
        if self.block and parts[0] in ("down", "up"):
            renamed.insert(2, self.block)
        return ".".join(renamed)

    def shape(self, ours: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that the original gives to one of our weights."""
        projection = ours.endswith(("qkv.weight", ".out.weight"))
        return (*shape, *(1,) * (self.kernel_dims if projection else 0))


_IGNORED = "input_adapter.pos_feats"
"""A buffer of the image networks that no published configuration uses."""

_NAMES: Mapping[str, _Names] = {
    "official-transformer": _Names(
        {
            "theta_in": "input_adapter.inp_embedding",
            "time_in": "input_adapter.t_embedding",
            "position": "input_adapter.pos_embedding",
            "blocks": "transformer.h",
            "attention_norm": "ln_1",
            "qkv": "attn.c_attn",
            "attention_out": "attn.c_proj",
            "mlp_norm": "ln_2",
            "mlp_in": "mlp.c_fc",
            "mlp_out": "mlp.c_proj",
            "norm": "transformer.ln_f",
            "logits_out": "lm_head",
        }
    ),
    "official-flat-unet": _Names(
        {
            "time_1": "embed_conditioning.0",
            "time_2": "embed_conditioning.2",
            "down": "down_blocks",
            "middle_1": "mid_resnet_block_1",
            "middle_attention": "mid_attn_block",
            "middle_2": "mid_resnet_block_2",
            "up": "up_blocks",
            "norm_1": "net1.0",
            "conv_1": "net1.2",
            "time": "cond_proj",
            "norm_2": "net2.0",
            "conv_2": "net2.3",
            "skip": "skip_conv",
            "norm": "layers.0",
            "qkv": "layers.1",
            "out": "layers.3",
            "norm_out": "conv_out.0",
            "conv_out": "conv_out.2",
            "pixel_out": "output_adapter.output_projection",
        },
        kernel_dims=2,
        block="resnet_block",
    ),
    "official-binary-unet": _Names(
        {
            "pixel_in": "input_projection",
            "time_1": "time_embed.0",
            "time_2": "time_embed.2",
            "down": "input_blocks",
            "middle": "middle_block",
            "up": "output_blocks",
            "norm_1": "in_layers.0",
            "conv_1": "in_layers.2",
            "time": "emb_layers.1",
            "norm_2": "out_layers.0",
            "conv_2": "out_layers.3",
            "skip": "skip_connection",
            "out": "proj_out",
            "shrink": "op",
            "enlarge": "conv",
            "norm_out": "out.0",
            "conv_out": "out.2",
            "pixel_out": "output_adapter.output_projection",
        },
        kernel_dims=1,
    ),
}


class CheckpointMismatchError(UserError):
    """A checkpoint whose keys are not those of the configuration; holds them all, by their names in the file."""

    def __init__(self, source: str, wrong: Mapping[str, Sequence[str]], hint: str) -> None:
        self.missing, self.unexpected, self.misshapen = (tuple(wrong[kind]) for kind in KINDS)
        found = "; ".join(f"{len(keys)} {kind}: {_some(keys)}" for kind, keys in wrong.items() if keys)
        super().__init__(f"{source} does not fit: {found}; {hint}")


def _some(keys: Sequence[str]) -> str:
    rest = len(keys) - NAMED_AT_MOST
    return ", ".join(keys[:NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def load_official(path: str | Path, settings: str | Mapping[str, Any]) -> BFN:
    """A model, in evaluation mode, from a published file or from the EMA file of a training run of the original code.

    path: a state dict as `torch.save` wrote it; keys may start with ``net.``. No code in it is ever run.
    settings: a name in `PUBLISHED`, or the ``model`` part of an original settings file as a dict.

    The 16-bin and 256-bin files of a kind have the same keys and shapes: only the name can tell them apart.
    """
    chosen = configuration(settings)
    state = read_state_dict(path)
    network, ours, wrong = _match(chosen, state)
    if any(wrong.values()):
        fitting = [name for name, published in PUBLISHED.items() if not any(_match(published, state)[2].values())]
        hint = f"its keys are those of {' or '.join(fitting)}" if fitting else "its keys fit no published configuration"
        name = settings if isinstance(settings, str) else "the given settings"
        raise CheckpointMismatchError(f"{path} as {name}", wrong, hint)
    network.load_state_dict(ours, assign=True)
    if isinstance(network, OfficialFlatUNet | OfficialBinaryUNet):
        network.prepare()
    info = chosen.info(f"the original BFN paper's weights, from {Path(path).name}")
    return BFN(network, chosen.flow, chosen.head, chosen.data_shape, info).eval()


def convert(path: str | Path, settings: str | Mapping[str, Any], out_dir: str | Path) -> BFN:
    """Load a published file and save it in this library's own format; nothing is written unless all of it fits."""
    model = load_official(path, settings)
    model.save(out_dir)
    return model


def _match(
    chosen: Configuration, state: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, Tensor], dict[str, list[str]]]:
    """The network without memory, our state dict, and the keys that do not fit by KINDS and their original names."""
    with torch.device("meta"):
        network = networks.build(chosen.network)
    names = _NAMES[str(chosen.network["name"])]
    prefix = "net." if all(key.startswith("net.") for key in state) else ""
    left = dict(state)
    ours: dict[str, Tensor] = {}
    missing: list[str] = []
    misshapen: list[str] = []
    for key, own in network.state_dict().items():
        official = prefix + names.key(key)
        value, expected = left.pop(official, None), names.shape(key, own.shape)
        if value is None:
            missing.append(official)
        elif tuple(value.shape) != expected:
            misshapen.append(f"{official} {tuple(value.shape)} instead of {expected}")
        elif not value.is_floating_point():
            misshapen.append(f"{official} of {value.dtype} instead of torch.float32")
        else:
            ours[key] = value.reshape(own.shape).to(torch.float32).contiguous()
    if isinstance(network, OfficialFlatUNet | OfficialBinaryUNet):
        left.pop(prefix + _IGNORED, None)
    return network, ours, dict(zip(KINDS, (missing, list(left), misshapen), strict=True))


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """A plain state dict from a file that `torch.save` wrote; refuses files that need code to be read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the path of a published checkpoint such as text8_ema.pt")
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if is_archive and not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise UserError(f"{path}: cut off at byte {size}, its table of contents is missing; fetch it again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is None:
            raise UserError(f"{path}: no PyTorch state dict, its bytes do not unpickle to plain tensors") from error
        needs = f"needs the code {code[1]} to be unpickled, which is not run; save its state_dict() alone"
        raise UserError(f"{path}: {needs}") from error
    except Exception as error:
        # torch.load lets through whatever damaged bytes lead to: RuntimeError, KeyError, EOFError, OSError, ...
        key = _damaged_key(path) if is_archive else None
        where = f"the data of {key} are incomplete" if key else f"{path.stat().st_size} bytes, no complete state dict"
        detail = re.split(r"\. |\n", str(error))[0][:120] if isinstance(error, RuntimeError) else type(error).__name__
        raise UserError(f"{path}: {where} ({detail}); fetch it again") from error
    if not isinstance(state, Mapping):
        raise UserError(f"{path}: holds a {type(state).__name__}; expected a state dict, names and tensors")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: {key!r} holds a {type(value).__name__}; expected a state dict, names and tensors")
    return dict(state)


def _damaged_key(path: Path) -> str | None:
    """The first key whose record in the archive is missing or has the wrong size; None if that cannot be told."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {record.filename.partition("/data/")[2]: record.file_size for record in archive.infolist()}
        shapes = torch.load(path, map_location="meta", weights_only=True)
        numbers: dict[int, int] = {}
        for key, value in shapes.items():
            storage = value.untyped_storage()
            # Records are numbered in the order in which their storages are first met.
            number = numbers.setdefault(storage._cdata, len(numbers))
            if sizes.get(str(number)) != storage.nbytes():
                return str(key)
    except Exception:
        # The error that asked for this diagnosis is the one to report.
        return None
    return None
