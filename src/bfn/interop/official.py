"""The models of the original BFN paper: their configurations, and the weights of its released code.

``PUBLISHED`` holds the six configurations that weights were published for. ``configuration`` reads other settings of
the same kinds: a setting that would change the network and is not supported is an error, never ignored.

Reference: Graves et al., "Bayesian Flow Networks", 2023, and the repository nnaisense/bayesian-flow-networks.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import Tensor

from bfn import networks
from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, PartFlow, Shape
from bfn.core.heads import Head, LogitsHead
from bfn.core.info import ModelInfo
from bfn.core.model import BFN
from bfn.data.tokenizers import TEXT8
from bfn.kinds.discretised import ClippedNoiseHead, DiscretisedHead, LogitHead
from bfn.networks.official import OfficialBinaryUNet, OfficialFlatUNet

Options = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Configuration:
    """A model of the original paper, as arguments of ``bfn.networks.build`` and ``bfn.BFN``.

    Attributes:
        network: config of the network.
        flow, head, data_shape: arguments of ``bfn.BFN``.
        data: the data that the model was trained on, as in the settings of a training run; without a name if it is not
            known. Evaluation prepares images by it.
        alphabet: symbols of a text model in the order of their classes.
    """

    network: Options
    flow: PartFlow
    head: Head
    data_shape: Shape
    data: Options
    alphabet: str | None = None

    def build(self) -> BFN:
        """Return the model with new weights."""
        return BFN(networks.build(self.network), self.flow, self.head, self.data_shape, self.info())

    def info(self, source: str | None = None) -> ModelInfo:
        """Return the facts of such a model; ``source`` says where its weights come from."""
        card: dict[str, Any] = {"settings": {"data": dict(self.data)}}
        if source is not None:
            card["source"] = source
        # The images of the paper are scaled to this range, and its code clips to it.
        value_range = (-1.0, 1.0) if self.flow.has_range and len(self.data_shape) == 3 else None
        return ModelInfo(alphabet=self.alphabet, value_range=value_range, card=card)


def _cifar10(n_bins: int, discretised: bool) -> Configuration:
    network = {
        "name": "official-flat-unet", "channels": 3, "width": 128, "n_blocks": 32, "n_heads": 1, "groups": 32,
        "n_outputs": 2 if discretised else 1, "dropout": 0.1,
    }  # fmt: skip
    head = DiscretisedHead(n_bins) if discretised else ClippedNoiseHead()
    levels = {"levels": n_bins} if n_bins < 256 else {}
    data = {"name": "cifar10", "labels": False, "centres": True, **levels}
    return Configuration(network, ContinuousFlow(math.sqrt({16: 1e-3, 256: 1e-6}[n_bins])), head, (3, 32, 32), data)


_TEXT8 = {
    "name": "official-transformer", "n_classes": 27, "length": 256, "width": 768, "n_layers": 24, "n_heads": 12,
    "dropout": 0.0,
}  # fmt: skip
_MNIST = {
    "name": "official-binary-unet", "width": 128, "multipliers": [1, 2, 2], "n_blocks": 2, "attention_rates": [8, 16],
    "n_heads": 4, "groups": 32, "dropout": 0.5,
}  # fmt: skip

PUBLISHED: Mapping[str, Configuration] = {
    "text8_discrete": Configuration(
        _TEXT8, DiscreteFlow(27, 0.75**2), LogitsHead(), (256,), {"name": "text8", "length": 256}, TEXT8.symbols
    ),
    "cifar10_continuous_16bins": _cifar10(16, discretised=False),
    "cifar10_continuous_256bins": _cifar10(256, discretised=False),
    "cifar10_discretized_16bins": _cifar10(16, discretised=True),
    "cifar10_discretized_256bins": _cifar10(256, discretised=True),
    "mnist_discrete": Configuration(
        _MNIST,
        DiscreteFlow(2, 3.0**2),
        LogitHead(),
        (1, 28, 28),
        {"name": "mnist", "labels": False, "binarise": "dynamic"},
    ),
}
"""The six published configurations, by the names of their settings files."""


# --- the settings files of the original code --------------------------------------------------------------------------


class _Section:
    """A section of the original settings, {"class_name": ..., "parameters": {...}}.

    It takes its place in the settings. Parameters are removed when they are read, so that unknown ones are left over.

    Args:
        settings: the original settings.
        name: name of the section.
        class_names: class names that it may have.
        fixed: parameters that must have these values, see ``fixed``.
    """

    def __init__(self, settings: dict[str, Any], name: str, *class_names: str, **fixed: Any) -> None:
        part = settings.get(name)
        kinds = {"class_name": str, "parameters": Mapping}
        if not isinstance(part, Mapping) or not all(isinstance(part.get(key), kind) for key, kind in kinds.items()):
            raise UserError(f"settings: {name!r} is {_brief(part)}; expected {{'class_name': ..., 'parameters': ...}}")
        self.name, self.class_name, self.parameters = name, part["class_name"], dict(part["parameters"])
        if self.class_name not in class_names:
            raise UserError(f"settings: {name} is {self.class_name!r}; expected {' or '.join(class_names)}")
        self.fixed(**fixed)
        settings[name] = self

    def read(self, name: str, kind: Callable[[Any], T], default: T | None = None) -> T:
        """Return an int, a float or a list of ints. It is required if it has no default."""
        value = self.parameters.pop(name, default)
        values = value if kind is list and isinstance(value, list | tuple) else [value]
        number = int | float if kind is float else int
        if not all(isinstance(each, number) and not isinstance(each, bool) for each in values):
            expected = "expected a value as in the published files"
            raise UserError(f"settings: {self.name}.{name} is {_brief(value)}; {expected}")
        return kind(value)

    def renamed(self, **names: str) -> dict[str, int]:
        """Return required whole numbers by their names in this library, ``ours="theirs"``."""
        return {ours: self.read(theirs, int) for ours, theirs in names.items()}

    def fixed(self, **expected: Any) -> None:
        """Raise a UserError if a parameter that changes the network has another value than in the published files."""
        for name, value in expected.items():
            actual = self.parameters.pop(name, value)
            if actual != value:
                raise UserError(f"settings: {self.name}.{name}={_brief(actual)}; only {value!r} is supported")

    def ignore(self, *names: str) -> None:
        """Remove parameters that follow from the others."""
        for name in names:
            self.parameters.pop(name, None)


def _brief(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


def configuration(settings: str | Mapping[str, Any]) -> Configuration:
    """Return a configuration.

    Args:
        settings: a name in ``PUBLISHED``, or the ``model`` part of an original settings file as a dict.

    Raises:
        UserError: a setting is unknown, missing or not supported.
    """
    if isinstance(settings, str):
        if settings not in PUBLISHED:
            raise UserError(f"settings={settings!r}: expected one of {', '.join(PUBLISHED)}, or a dict of settings")
        return PUBLISHED[settings]
    original = dict(settings)
    readers = {"GPT": _read_text, "UNetVDM": _read_images, "UNetModel": _read_binary}
    net = _Section(original, "net", *readers)
    chosen = readers[net.class_name](net, original)
    for section in original.values():
        if isinstance(section, _Section) and section.parameters:
            raise UserError(
                f"settings: {section.name} has unknown parameters {', '.join(map(str, section.parameters))}"
            )
    return chosen


def _read_discrete_flow(original: dict[str, Any], distribution: str) -> DiscreteFlow:
    flow = _Section(original, "bayesian_flow", "DiscreteBayesianFlow")
    flow.fixed(discretize=False, min_sqrt_beta=1e-10, epsilon=1e-6)
    _Section(original, "loss", "DiscreteBayesianFlowLoss")
    _Section(original, "distribution_factory", distribution)
    return DiscreteFlow(flow.read("n_classes", int), flow.read("max_sqrt_beta", float) ** 2)


def _read_image_adapters(original: dict[str, Any], channels: int) -> tuple[Shape, int]:
    """Return the data shape and the number of outputs for each channel."""
    adapter = _Section(original, "input_adapter", "FourierImageInputAdapter")
    adapter.fixed(input_channels=channels, add_pos_feats=False)
    output = _Section(original, "output_adapter", "OutputAdapter", output_channels=channels)
    adapter.ignore("output_height", "add_mask")
    output.ignore("input_height")
    return (channels, *adapter.read("input_shape", list)), output.read("output_height", int)


def _read_text(net: _Section, original: dict[str, Any]) -> Configuration:
    flow = _read_discrete_flow(original, "CategoricalFactory")
    n_classes, width = flow.n_classes, net.read("n_embd", int)
    net.fixed(vocab_size=n_classes, skip=True, bias=True, is_causal=False)
    adapter = _Section(original, "input_adapter", "TextInputAdapter", vocab_size=n_classes, learn_pos_embedding=False)
    adapter.fixed(output_size=width)
    if original.get("output_adapter") is not None:
        raise UserError("settings: output_adapter; a GPT network is supported only without one")
    length = adapter.read("seq_len", int)
    network = {
        "name": "official-transformer", "n_classes": n_classes, "length": length, "width": width,
        **net.renamed(n_layers="n_layer", n_heads="n_head"), "dropout": net.read("dropout", float, 0.0),
    }  # fmt: skip
    alphabet = TEXT8.symbols if n_classes == len(TEXT8) else None
    return Configuration(network, flow, LogitsHead(), (length,), {"length": length}, alphabet)


def _read_images(net: _Section, original: dict[str, Any]) -> Configuration:
    channels = net.read("input_channels", int)
    shape, n_outputs = _read_image_adapters(original, channels)
    net.fixed(use_fourier_features=True, attention_everywhere=False, image_size=shape[-1])
    network = {
        "name": "official-flat-unet", "channels": channels,
        **net.renamed(width="embedding_dim", n_blocks="n_blocks", n_heads="n_attention_heads", groups="norm_groups"),
        "n_outputs": n_outputs, "dropout": net.read("dropout_prob", float, 0.1),
    }  # fmt: skip
    variance = _Section(original, "bayesian_flow", "CtsBayesianFlow").read("min_variance", float, 1e-6)
    _Section(original, "loss", "CtsBayesianFlowLoss", noise_pred=True, min_loss_variance=-1)
    head = _read_continuous_head(original, n_outputs)
    levels = {"levels": head.n_bins} if isinstance(head, DiscretisedHead) else {}
    return Configuration(network, ContinuousFlow(math.sqrt(variance)), head, shape, {"centres": True, **levels})


def _read_continuous_head(original: dict[str, Any], n_outputs: int) -> Head:
    factories = ("DeltaFactory", "DiscretizedNormalFactory", "DiscretizedGMMFactory")
    factory = _Section(original, "distribution_factory", *factories)
    head: Head
    if factory.class_name == "DeltaFactory":
        factory.fixed(clip_range=1.0)
        head, fits, expected = ClippedNoiseHead(), n_outputs == 1, "1"
    else:
        factory.fixed(clip=True, min_std_dev=1e-3, max_std_dev=10, min_prob=1e-5, log_dev=True)
        n_bins = factory.read("num_bins", int)
        head, fits, expected = DiscretisedHead(n_bins), n_outputs == 2, "2"
        if factory.class_name == "DiscretizedGMMFactory":
            # A mixture of one normal has three numbers in the original, of which the weight says nothing.
            head, fits = DiscretisedHead(n_bins, max(1, n_outputs // 3)), n_outputs % 3 == 0 and n_outputs > 3
            expected = "a multiple of 3 above 3"
    if not fits:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; {factory.class_name} needs {expected}")
    return head


def _read_binary(net: _Section, original: dict[str, Any]) -> Configuration:
    flow = _read_discrete_flow(original, "BernoulliFactory")
    if flow.n_classes != 2:
        raise UserError(f"settings: bayesian_flow.n_classes={flow.n_classes}; a UNetModel is supported for 2 classes")
    shape, n_outputs = _read_image_adapters(original, 1)
    if n_outputs != 1:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; BernoulliFactory needs 1")
    width = net.read("model_channels", int)
    net.fixed(image_size=shape[-1], in_channels=2, out_channels=width, conv_resample=True, dims=2)
    net.fixed(num_heads_upsample=-1, project_input=True, skip=True)
    network = {
        "name": "official-binary-unet", "width": width, "groups": 32, "dropout": net.read("dropout", float, 0.0),
        **net.renamed(n_blocks="num_res_blocks", n_heads="num_heads"),
        "multipliers": net.read("channel_mult", list), "attention_rates": net.read("attention_resolutions", list),
    }  # fmt: skip
    return Configuration(network, flow, LogitHead(), shape, {"binarise": "dynamic"})


# --- checkpoint files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Names:
    """The names that the original code gives to our weights.

    Attributes:
        parts: our name -> the original name, for the parts of a dotted key.
        kernel_dims: attention projections were convolutions with kernels of size 1 in this many dimensions.
        block: the name between the index of a down or up block and its weights.
    """

    parts: Mapping[str, str]
    kernel_dims: int = 0
    block: str = ""

    def key(self, ours: str) -> str:
        """Return the original key of one of our keys."""
        parts = ours.split(".")
        renamed = [self.parts.get(part, part) for part in parts]
        if self.block and parts[0] in ("down", "up"):
            renamed.insert(2, self.block)
        return ".".join(renamed)

    def shape(self, ours: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that the original code gives to one of our weights."""
        projection = ours.endswith(("qkv.weight", ".out.weight"))
        return (*shape, *(1,) * (self.kernel_dims if projection else 0))


_NAMES: Mapping[str, _Names] = {
    "official-transformer": _Names({
        "theta_in": "input_adapter.inp_embedding", "time_in": "input_adapter.t_embedding",
        "position": "input_adapter.pos_embedding", "blocks": "transformer.h", "attention_norm": "ln_1",
        "qkv": "attn.c_attn", "attention_out": "attn.c_proj", "mlp_norm": "ln_2", "mlp_in": "mlp.c_fc",
        "mlp_out": "mlp.c_proj", "norm": "transformer.ln_f", "logits_out": "lm_head",
    }),
    "official-flat-unet": _Names({
        "time_1": "embed_conditioning.0", "time_2": "embed_conditioning.2", "down": "down_blocks",
        "middle_1": "mid_resnet_block_1", "middle_attention": "mid_attn_block", "middle_2": "mid_resnet_block_2",
        "up": "up_blocks", "norm_1": "net1.0", "conv_1": "net1.2", "time": "cond_proj", "norm_2": "net2.0",
        "conv_2": "net2.3", "skip": "skip_conv", "norm": "layers.0", "qkv": "layers.1", "out": "layers.3",
        "norm_out": "conv_out.0", "conv_out": "conv_out.2", "pixel_out": "output_adapter.output_projection",
    }, kernel_dims=2, block="resnet_block"),
    "official-binary-unet": _Names({
        "pixel_in": "input_projection", "time_1": "time_embed.0", "time_2": "time_embed.2", "down": "input_blocks",
        "middle": "middle_block", "up": "output_blocks", "norm_1": "in_layers.0", "conv_1": "in_layers.2",
        "time": "emb_layers.1", "norm_2": "out_layers.0", "conv_2": "out_layers.3", "skip": "skip_connection",
        "out": "proj_out", "shrink": "op", "enlarge": "conv", "norm_out": "out.0", "conv_out": "out.2",
        "pixel_out": "output_adapter.output_projection",
    }, kernel_dims=1),
}  # fmt: skip

MISMATCHES = ("missing", "unexpected", "misshapen")
MOST_NAMED = 8
"""Maximum number of keys of each kind of mismatch in an error message; the exception itself holds them all."""


class CheckpointMismatchError(UserError):
    """A checkpoint whose keys are not those of the configuration.

    Attributes:
        missing, unexpected, misshapen: all such keys, by their names in the file.
    """

    def __init__(self, source: str, wrong: Mapping[str, Sequence[str]], hint: str) -> None:
        self.missing, self.unexpected, self.misshapen = (tuple(wrong[kind]) for kind in MISMATCHES)
        found = "; ".join(f"{len(keys)} {kind}: {_some(keys)}" for kind, keys in wrong.items() if keys)
        super().__init__(f"{source} does not fit: {found}; {hint}")


def _some(keys: Sequence[str]) -> str:
    rest = len(keys) - MOST_NAMED
    return ", ".join(keys[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def load_official(path: str | Path, settings: str | Mapping[str, Any]) -> BFN:
    """Load a model from a published file, or from the EMA file of a training run of the original code.

    The 16-bin and 256-bin files of a kind have the same keys and shapes: only the name can tell them apart.

    Args:
        path: a state dict as ``torch.save`` wrote it. Keys may start with ``net.``. No code in it is ever run.
        settings: a name in ``PUBLISHED``, or the ``model`` part of an original settings file as a dict.

    Returns:
        The model in evaluation mode.

    Raises:
        CheckpointMismatchError: the keys are not those of the configuration.
        UserError: the file cannot be read.
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
        network.reset_constants()
    info = chosen.info(f"the original BFN paper's weights, from {Path(path).name}")
    return BFN(network, chosen.flow, chosen.head, chosen.data_shape, info).eval()


def convert(path: str | Path, settings: str | Mapping[str, Any], out_dir: str | Path) -> BFN:
    """Load a published file and save it in the format of this library. Nothing is written unless all of it fits.

    Args:
        path, settings: see ``load_official``.
        out_dir: directory to write.
    """
    model = load_official(path, settings)
    model.save(out_dir)
    return model


def _match(
    chosen: Configuration, state: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, Tensor], dict[str, list[str]]]:
    """Return the network without memory, its state dict, and the original names of the keys that do not fit."""
    with torch.device("meta"):
        network = networks.build(chosen.network)
    names = _NAMES[str(chosen.network["name"])]
    prefix = "net." if all(key.startswith("net.") for key in state) else ""
    left, ours = dict(state), {}
    wrong: dict[str, list[str]] = {kind: [] for kind in MISMATCHES}
    for key, own in network.state_dict().items():
        official = prefix + names.key(key)
        value, expected = left.pop(official, None), names.shape(key, own.shape)
        if value is None:
            wrong["missing"].append(official)
        elif tuple(value.shape) != expected:
            wrong["misshapen"].append(f"{official} {tuple(value.shape)} instead of {expected}")
        elif not value.is_floating_point():
            wrong["misshapen"].append(f"{official} of {value.dtype} instead of torch.float32")
        else:
            ours[key] = value.reshape(own.shape).to(torch.float32).contiguous()
    if isinstance(network, OfficialFlatUNet | OfficialBinaryUNet):
        left.pop(f"{prefix}input_adapter.pos_feats", None)  # a buffer that no published configuration uses
    wrong["unexpected"] = list(left)
    return network, ours, wrong


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a file that ``torch.save`` wrote. Files that contain code are refused."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the path of a published checkpoint such as text8_ema.pt")
    state = _unpickled(path)
    if not isinstance(state, Mapping):
        raise UserError(f"{path}: holds a {type(state).__name__}; expected a state dict, names and tensors")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: {key!r} holds a {type(value).__name__}; expected a state dict, names and tensors")
    return dict(state)


def _unpickled(path: Path) -> Any:
    """Return the object in a file. Raise a UserError that says what is wrong with the file if it cannot be read."""
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if is_archive and not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise UserError(f"{path}: cut off at byte {size}, its table of contents is missing; fetch it again")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
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


def _damaged_key(path: Path) -> str | None:
    """Return the first key whose record in the archive is missing or has the wrong size, if it can be found."""
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
        # The error that led here is the one to report.
        return None
    return None
