"""The configurations of the original BFN paper and the settings of its released code, in this library's terms.

`PUBLISHED` holds the six configurations that weights were published for; `configuration` translates other settings of
the same kinds, strictly: a setting that would change the network and is not supported is an error, never ignored.

Reference: Graves et al., "Bayesian Flow Networks", 2023, and the repository nnaisense/bayesian-flow-networks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bfn import networks
from bfn.data import TEXT8
from bfn.errors import UserError
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow, Shape
from bfn.heads import ClippedNoiseHead, DiscretisedHead, Head, LogitHead, LogitsHead
from bfn.info import ModelInfo
from bfn.model import BFN

__all__ = ["PUBLISHED", "Configuration", "configuration"]


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
    network: dict[str, networks.JSON] = {
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
    data: dict[str, networks.JSON] = {"name": "cifar10", "labels": False, "centres": True}
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
    """One part of the original settings, {"class_name": ..., "parameters": {...}}, read strictly."""

    def __init__(self, settings: Mapping[str, Any], name: str) -> None:
        part = settings.get(name)
        if not (
            isinstance(part, Mapping)
            and isinstance(part.get("class_name"), str)
            and isinstance(part.get("parameters"), Mapping)
        ):
            raise UserError(f"settings: {name!r} is {_brief(part)}; expected {{'class_name': ..., 'parameters': ...}}")
        self.name = name
        self.class_name: str = part["class_name"]
        self.parameters: dict[str, Any] = dict(part["parameters"])

    def one_of(self, *class_names: str) -> str:
        """The class name, which must be one of these."""
        if self.class_name not in class_names:
            raise UserError(f"settings: {self.name} is {self.class_name!r}; expected {' or '.join(class_names)}")
        return self.class_name

    def integer(self, name: str) -> int:
        """A required whole number."""
        return int(self._take(name, int))

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

    def done(self) -> None:
        """Raise for what has not been read: it would be ignored."""
        if self.parameters:
            raise UserError(f"settings: {self.name} has unknown parameters {', '.join(map(str, self.parameters))}")

    def _take(self, name: str, kind: Any, default: Any = None) -> Any:
        value = self.parameters.pop(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(
                f"settings: {self.name}.{name} is {_brief(value)}; expected a value as in the published files"
            )
        return value


def _brief(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


def configuration(settings: str | Mapping[str, Any]) -> Configuration:
    """A configuration from a published name, or from the ``model`` part of an original settings file as a dict."""
    if isinstance(settings, str):
        if settings not in PUBLISHED:
            raise UserError(f"settings={settings!r}: expected one of {', '.join(PUBLISHED)}, or a dict of settings")
        return PUBLISHED[settings]
    net = _Section(settings, "net")
    read = {"GPT": _read_text, "UNetVDM": _read_images, "UNetModel": _read_binary}
    return read[net.one_of(*read)](net, settings)


def _read_discrete_flow(settings: Mapping[str, Any], distribution: str) -> DiscreteFlow:
    section = _Section(settings, "bayesian_flow")
    section.one_of("DiscreteBayesianFlow")
    section.fixed(discretize=False, min_sqrt_beta=1e-10, epsilon=1e-6)
    flow = DiscreteFlow(section.integer("n_classes"), section.number("max_sqrt_beta") ** 2)
    section.done()
    loss = _Section(settings, "loss")
    loss.one_of("DiscreteBayesianFlowLoss")
    loss.done()
    factory = _Section(settings, "distribution_factory")
    factory.one_of(distribution)
    factory.done()
    return flow


def _read_image_adapters(settings: Mapping[str, Any], channels: int) -> tuple[Shape, int]:
    """Data shape and outputs a channel."""
    adapter, output = _Section(settings, "input_adapter"), _Section(settings, "output_adapter")
    adapter.one_of("FourierImageInputAdapter")
    adapter.fixed(input_channels=channels, add_pos_feats=False)
    shape = (channels, *adapter.integers("input_shape"))
    output.one_of("OutputAdapter")
    output.fixed(output_channels=channels)
    n_outputs = output.integer("output_height")
    for section, follows_from_the_rest in ((adapter, ("output_height", "add_mask")), (output, ("input_height",))):
        for name in follows_from_the_rest:
            section.parameters.pop(name, None)
        section.done()
    return shape, n_outputs


def _read_text(net: _Section, settings: Mapping[str, Any]) -> Configuration:
    flow = _read_discrete_flow(settings, "CategoricalFactory")
    adapter = _Section(settings, "input_adapter")
    adapter.one_of("TextInputAdapter")
    if settings.get("output_adapter") is not None:
        raise UserError("settings: output_adapter; a GPT network is supported only without one")
    network: dict[str, networks.JSON] = {
        "name": "official-transformer",
        "n_classes": flow.n_classes,
        "length": (length := adapter.integer("seq_len")),
        "width": (width := net.integer("n_embd")),
        "n_layers": net.integer("n_layer"),
        "n_heads": net.integer("n_head"),
        "dropout": net.number("dropout", 0.0),
    }
    adapter.fixed(vocab_size=flow.n_classes, output_size=width, learn_pos_embedding=False)
    net.fixed(vocab_size=flow.n_classes, skip=True, bias=True, is_causal=False)
    net.done()
    adapter.done()
    alphabet = TEXT8.symbols if flow.n_classes == len(TEXT8) else None
    return Configuration(network, flow, LogitsHead(), (length,), {"length": length}, alphabet)


def _read_images(net: _Section, settings: Mapping[str, Any]) -> Configuration:
    channels = net.integer("input_channels")
    shape, n_outputs = _read_image_adapters(settings, channels)
    net.fixed(use_fourier_features=True, attention_everywhere=False, image_size=shape[-1])
    network: dict[str, networks.JSON] = {
        "name": "official-flat-unet",
        "channels": channels,
        "width": net.integer("embedding_dim"),
        "n_blocks": net.integer("n_blocks"),
        "n_heads": net.integer("n_attention_heads"),
        "groups": net.integer("norm_groups"),
        "n_outputs": n_outputs,
        "dropout": net.number("dropout_prob", 0.1),
    }
    net.done()
    section = _Section(settings, "bayesian_flow")
    section.one_of("CtsBayesianFlow")
    flow = ContinuousFlow(math.sqrt(section.number("min_variance", 1e-6)))
    section.done()
    loss = _Section(settings, "loss")
    loss.one_of("CtsBayesianFlowLoss")
    loss.fixed(noise_pred=True, min_loss_variance=-1)
    loss.done()
    head = _read_continuous_head(settings, n_outputs)
    data: dict[str, networks.JSON] = {"centres": True}
    if isinstance(head, DiscretisedHead):
        data["levels"] = head.n_bins
    return Configuration(network, flow, head, shape, data)


def _read_continuous_head(settings: Mapping[str, Any], n_outputs: int) -> Head:
    factory = _Section(settings, "distribution_factory")
    kind = factory.one_of("DeltaFactory", "DiscretizedNormalFactory", "DiscretizedGMMFactory")
    n_expected: int | str
    head: Head
    if kind == "DeltaFactory":
        factory.fixed(clip_range=1.0)
        head, n_expected, fits = ClippedNoiseHead(), 1, n_outputs == 1
    else:
        factory.fixed(clip=True, min_std_dev=1e-3, max_std_dev=10, min_prob=1e-5, log_dev=True)
        n_bins = factory.integer("num_bins")
        if kind == "DiscretizedNormalFactory":
            head, n_expected, fits = DiscretisedHead(n_bins), 2, n_outputs == 2
        else:
            # A mixture of one normal has three numbers in the original, of which the weight says nothing.
            head, n_expected = DiscretisedHead(n_bins, max(1, n_outputs // 3)), "a multiple of 3 above 3"
            fits = n_outputs % 3 == 0 and n_outputs > 3
    factory.done()
    if not fits:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; {kind} needs {n_expected}")
    return head


def _read_binary(net: _Section, settings: Mapping[str, Any]) -> Configuration:
    flow = _read_discrete_flow(settings, "BernoulliFactory")
    if flow.n_classes != 2:
        raise UserError(f"settings: bayesian_flow.n_classes={flow.n_classes}; a UNetModel is supported for 2 classes")
    shape, n_outputs = _read_image_adapters(settings, 1)
    if n_outputs != 1:
        raise UserError(f"settings: output_adapter.output_height={n_outputs}; BernoulliFactory needs 1")
    width = net.integer("model_channels")
    network: dict[str, networks.JSON] = {
        "name": "official-binary-unet",
        "width": width,
        "multipliers": net.integers("channel_mult"),
        "n_blocks": net.integer("num_res_blocks"),
        "attention_rates": net.integers("attention_resolutions"),
        "n_heads": net.integer("num_heads"),
        "groups": 32,
        "dropout": net.number("dropout", 0.0),
    }
    net.fixed(
        image_size=shape[-1],
        in_channels=2,
        out_channels=width,
        conv_resample=True,
        dims=2,
        num_heads_upsample=-1,
        project_input=True,
        skip=True,
    )
    net.done()
    return Configuration(network, flow, LogitHead(), shape, {"binarise": "dynamic"})
