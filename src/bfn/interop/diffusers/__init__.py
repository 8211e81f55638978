"""Pipelines and networks for diffusers (extra ``diffusers``); the schedulers are in ``.schedulers``.

pipe = BFNPipeline.from_model(bfn.load("mnist"), solver="fast-ode")
pipe.scheduler = VPSolverScheduler.from_config(other.scheduler.config)      # these solvers for a diffusion model
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import diffusers
import numpy as np
import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d import UNet2DModel, UNet2DOutput
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.outputs import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor, nn

from bfn import networks
from bfn.core.codec import CODEC
from bfn.core.conditions import (
    LENGTHS,
    NO_CLASS,
    Classes,
    Condition,
    Conditions,
    Label,
    Lengths,
    conditions_for,
    null_like,
    present_of,
)  # fmt: skip
from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, Shape
from bfn.core.info import ModelInfo
from bfn.core.model import BFN, takes
from bfn.core.plain import from_plain, to_plain
from bfn.data.tokenizers import Tokenizer
from bfn.interop.diffusers import schedulers
from bfn.interop.diffusers.schedulers import BFNScheduler, BFNSchedulerOutput, DiscreteBFNScheduler, VPSolverScheduler

__all__ = [
    "BFNNetwork", "BFNPipeline", "BFNScheduler", "BFNSchedulerOutput", "BFNTextPipeline", "DiscreteBFNScheduler",
    "TextPipelineOutput", "UNetNetwork", "VPSolverScheduler",
]  # fmt: skip

OnStepEnd = Callable[[Any, int, Tensor, dict[str, Tensor]], dict[str, Tensor]]
"""A function of (pipeline, index, timestep, tensors) that returns the tensors to continue with."""

FACTS: Mapping[str, Any] = {
    "alphabet": str, "tokenizer": Tokenizer, "lengths": Lengths, "classes": Classes,
    "conditions": Mapping[str, Condition],
}  # fmt: skip
"""Types of the facts of a model's info that a pipeline stores in its config as plain values."""

CALLBACK_TENSORS = ("latents", "pred_original_sample", "model_output")
"""Names of the tensors that a callback can ask for."""


class BFNNetwork(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """A network of this library as a diffusers model.

    Args:
        architecture: config of the network, as in ``bfn.networks.build``.
        data_shape: shape of one sample.
        num_train_timesteps: timestep of pure noise.
    """

    @schedulers.stores_config
    def __init__(
        self, architecture: Mapping[str, Any], data_shape: Sequence[int], num_train_timesteps: int = 1000
    ) -> None:
        super().__init__()
        self.network = networks.build(architecture)

    def forward(
        self, sample: Tensor, timestep: Tensor | float, class_labels: Tensor | None = None, return_dict: bool = True,
        **conditions: Tensor,
    ) -> UNet2DOutput | tuple[Tensor]:  # fmt: skip
        """Call the network.

        Args:
            sample: result of ``scheduler.scale_model_input``.
            timestep: one timestep, or (batch,).
            class_labels: (batch,), -1 for the network without a class.
            return_dict: whether to return an output object or a tuple.
            conditions: other conditions by name, (batch, ...). ``present``, bool (batch, *data_shape) and False for
                padding, is left out if the network does not take it.
        """
        timestep = torch.as_tensor(timestep, dtype=torch.float32, device=sample.device).expand(len(sample))
        t = (1 - timestep / self.config["num_train_timesteps"]).to(sample.dtype)
        if class_labels is not None:
            conditions["label"] = class_labels
        if not takes(self.network, "present"):
            conditions.pop("present", None)
        raw = self.network(sample, t, **conditions)
        return UNet2DOutput(sample=raw) if return_dict else (raw,)


class UNetNetwork(nn.Module):
    """A U-Net of diffusers as a network of this library; train it with ``bfn.BFN(UNetNetwork(unet), flow, ...)``.

    Args:
        unet: the U-Net. With class embeddings it has one more than there are classes; the last one means "no class".
        num_train_timesteps: timestep of pure noise.
    """

    def __init__(self, unet: UNet2DModel, num_train_timesteps: int = 1000) -> None:
        super().__init__()
        self.unet, self.num_train_timesteps = unet, num_train_timesteps

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Call the U-Net on inputs (batch, channel, height, width), times (batch,) and labels (batch,), -1 for none."""
        none = no_class(self.unet)
        if none is not None:
            label = t.new_full(t.shape, none, dtype=torch.long) if label is None else label.where(label >= 0, none)
        output: Tensor = self.unet(inputs, (1 - t) * self.num_train_timesteps, label, return_dict=False)[0]
        return output


Denoiser = UNet2DModel | BFNNetwork


def no_class(network: Denoiser) -> int | None:
    """Return the label that means "no class", or None if the network has no classes."""
    if isinstance(network, BFNNetwork):
        return -1 if network.config["architecture"].get("n_labels") else None
    classes = network.config["num_class_embeds"]
    return None if classes is None else int(classes) - 1


def data_shape(network: Denoiser) -> Shape:
    """Return the shape of one sample."""
    if isinstance(network, BFNNetwork):
        return tuple(network.config["data_shape"])
    size = network.config["sample_size"]
    return (network.config["in_channels"], *((size, size) if isinstance(size, int) else size))


def as_diffusers(network: Any, shape: Shape) -> Denoiser:
    """Return the network of a ``bfn.BFN`` as a diffusers model with the same weights."""
    if isinstance(network, UNetNetwork):
        if network.num_train_timesteps != 1000:
            raise UserError(f"num_train_timesteps={network.num_train_timesteps}: a pipeline made from a model has 1000")
        unet: UNet2DModel = network.unet
        return unet
    config = getattr(network, "config", None)
    if not isinstance(network, nn.Module) or not isinstance(config, Mapping):
        name = type(network).__name__
        raise UserError(f"network {name}: only a network of bfn.networks or a UNetNetwork goes into a pipeline")
    wrapped = BFNNetwork(dict(config), list(shape))
    wrapped.network = network
    return wrapped


@dataclass
class TextPipelineOutput(BaseOutput):
    """Texts of a pipeline.

    Attributes:
        texts: strings, one for each sample; or classes, (batch, length), 0 after the end of a text.
    """

    texts: list[str] | np.ndarray | Tensor


class _Generation(DiffusionPipeline):
    """Base class of the pipelines with the sampling loop. Subclasses have the network and convert the samples."""

    _callback_tensor_inputs: ClassVar = list(CALLBACK_TENSORS)
    model_cpu_offload_seq: Any
    default_calls: ClassVar[int]
    output_types: ClassVar[tuple[str, ...]]
    facts: ClassVar[tuple[str, ...]]
    draws_numbers: ClassVar[bool]
    info: ModelInfo
    scheduler: schedulers.TableScheduler

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """Return a pipeline around a model of this library. ``settings``: of the scheduler, such as ``solver``."""
        numbers = cls.draws_numbers and isinstance(model.flow, ContinuousFlow)
        scheduler = (BFNScheduler if numbers else DiscreteBFNScheduler).from_model(model, **settings)
        facts = {name: to_plain(getattr(model.info, name)) or None for name in cls.facts}
        make: Callable[..., Self] = cls
        return make(as_diffusers(model.network, model.data_shape), scheduler, **facts)

    def _store(self, **facts: Any) -> None:
        """Store the facts of the model, given as plain values, in the config and as the info."""
        known = {name: value for name, value in facts.items() if value is not None}
        self.info = ModelInfo(**{name: from_plain(FACTS[name], value, name) for name, value in known.items()})
        self.register_to_config(**facts)

    @property
    def _network(self) -> Denoiser:
        network: Denoiser = getattr(self, self.model_cpu_offload_seq)
        return network

    def _output(self, x: Tensor, present: Tensor | None, output_type: str) -> BaseOutput:
        """Return data (batch, *data_shape) in one of the output types."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(
        self, batch_size: int = 1, num_inference_steps: int | None = None, class_labels: Label | None = None,
        guidance_scale: float = 1.0, generator: schedulers.Generators = None, latents: Tensor | None = None,
        timesteps: Sequence[float] | None = None, output_type: str | None = None, return_dict: bool = True,
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        lengths: int | Sequence[int] | Tensor | None = None, label: Label | None = None,
        condition: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Generate samples.

        Args:
            batch_size: number of samples.
            num_inference_steps: number of network calls; 20 for images and 50 for text if None.
            class_labels: one class for all samples or one for each, numbers or names, -1 for none. If neither classes
                nor other conditions are given, all are drawn from those of the training data, as ``model.sample`` does.
            guidance_scale: scale of classifier-free guidance, 1 for none; as ``bfn.Guidance(scale, rescale=0)``.
            generator: source of the random numbers.
            latents: standard normal noise to start from.
            timesteps: decreasing timesteps, instead of num_inference_steps.
            output_type: for images "pil" (default), "np" (batch, height, width, channel), "pt" (batch, channel,
                height, width), both in [0, 1], or "latent" for the data of the model, floats in [-1, 1] or classes.
                For text "text" (default), or "np" or "pt" for classes, (batch, length).
            return_dict: whether to return an output object or a tuple.
            callback_on_step_end: called as (pipeline, index, timestep, tensors) after each network call; returns
                tensors to continue with.
            callback_on_step_end_tensor_inputs: names of these tensors.
            lengths: one length for all samples or one for each, for models of data of different lengths. If None they
                are drawn with their frequencies in the training data.
            label: another name of class_labels, as in ``model.sample``.
            condition: other conditions by name, one value for all samples or one for each.
        """
        output_type = self.output_types[0] if output_type is None else output_type
        _check_choices("output_type=", [output_type], self.output_types)
        _check_choices("callback tensor ", callback_on_step_end_tensor_inputs, CALLBACK_TENSORS)
        if class_labels is not None and label is not None:
            raise UserError("label beside class_labels: two names of the same; give one of them")
        label = class_labels if label is None else label
        conditions = self._conditions(label, condition, batch_size, guidance_scale, generator)
        flow, own, shape = self.scheduler.flow, self.info[LENGTHS], data_shape(self._network)
        present = present_of(flow, shape, batch_size, None, lengths, own, _one(generator), self._device)
        if timesteps is None and num_inference_steps is None:
            num_inference_steps = self.default_calls
        self.scheduler.set_timesteps(num_inference_steps if timesteps is None else None, self._device, timesteps)
        latents = self._first_sample(latents, batch_size, generator)
        for index, timestep in enumerate(self.progress_bar(self.scheduler.timesteps)):
            model_output = self._predict(latents, timestep, conditions, present, guidance_scale)
            latents, predicted = self.scheduler.step(model_output, timestep, latents, generator, return_dict=False)
            if callback_on_step_end is not None:
                tensors = dict(zip(CALLBACK_TENSORS, (latents, predicted, model_output), strict=True))
                asked = {name: tensors[name] for name in callback_on_step_end_tensor_inputs}
                latents = callback_on_step_end(self, index, timestep, asked).get("latents", latents)
        self.maybe_free_model_hooks()
        x = flow.decode(latents)
        x = x if present is None else torch.where(present, x, torch.zeros_like(x))
        output = self._output(x, present, output_type)
        return output if return_dict else output.to_tuple()

    @property
    def _device(self) -> torch.device:
        return torch.device(self._execution_device)

    def _conditions(
        self, label: Label | None, condition: Any, n: int, scale: float, generator: schedulers.Generators
    ) -> dict[str, Tensor]:
        """Return the conditions that the network is called with by name, each (n, ...), as ``model.sample`` does."""
        network, none, asked = self._network, no_class(self._network), Conditions.from_options(label, condition)
        if none is None and asked.label is not None:
            raise UserError(f"class_labels={asked.label}: this network knows no classes; leave them out")
        for name in asked.condition:
            if not isinstance(network, BFNNetwork) or not takes(network.network, name):
                raise UserError(f"condition {name!r}: this network takes no condition of that name; leave it out")
        model: Any = SimpleNamespace(info=self.info, device=self._device)
        found = conditions_for(model, n, asked.label, asked.condition, _one(generator))
        if none is None:
            found.pop("label", None)
        if scale != 1 and not found:
            raise UserError(f"guidance_scale={scale}: it needs conditions to guide to; give class_labels or condition")
        return found if none is None else {"label": torch.full((n,), NO_CLASS, device=self._device), **found}

    def _first_sample(self, noise: Tensor | None, n: int, generator: schedulers.Generators) -> Tensor:
        """Return the sample at the first timestep, from the given or from new noise."""
        shape = (n, *self.scheduler.flow.state_shape(data_shape(self._network)))
        if noise is None:
            noise = randn_tensor(shape, generator=generator, device=self._device, dtype=self._network.dtype)
        elif tuple(noise.shape) != shape:
            raise UserError(f"latents of shape {tuple(noise.shape)}: expected standard normal ones of shape {shape}")
        return noise.to(self._device) * self.scheduler.init_noise_sigma

    def _predict(
        self, sample: Tensor, timestep: Tensor, given: Mapping[str, Tensor], present: Tensor | None, scale: float
    ) -> Tensor:
        """Return the network's output; with guidance it is called on a batch twice as large."""
        network, conditions, copies = self._network, dict(given), 1 if scale == 1 else 2
        if scale != 1:
            conditions = {name: torch.cat([value, null_like(value)]) for name, value in given.items()}
        none = no_class(network)
        if none is not None:
            label = conditions.pop("label")
            conditions["class_labels"] = label.where(label >= 0, none)
        if present is not None:
            # As in BFN.output: the state is 0 where a sample has no data.
            sample = torch.where(self.scheduler.flow.over_variables(present, sample), sample, torch.zeros_like(sample))
            if isinstance(network, BFNNetwork):
                conditions["present"] = torch.cat([present] * copies)
        inputs = torch.cat([self.scheduler.scale_model_input(sample, timestep)] * copies)
        output: Tensor = network(inputs, timestep, return_dict=False, **conditions)[0]
        if scale == 1:
            return output
        conditional, unconditional = output.chunk(2)
        return torch.lerp(unconditional, conditional, scale)


class BFNPipeline(_Generation):
    """Images from a Bayesian flow network: ``BFNPipeline.from_model(model)(batch_size=4).images``.

    Args:
        unet: a U-Net of diffusers or a ``BFNNetwork``.
        scheduler: a ``BFNScheduler``, or a ``DiscreteBFNScheduler`` for pixels of n_classes values.
        classes, conditions: names and shares of the model's classes, and its other conditions, as plain values
            (``bfn.core.plain.to_plain``); ``from_model`` fills them in.
    """

    model_cpu_offload_seq = "unet"
    default_calls = 20
    output_types = ("pil", "np", "pt", "latent")
    facts = ("classes", "conditions")
    draws_numbers = True

    def __init__(
        self, unet: Denoiser, scheduler: BFNScheduler | DiscreteBFNScheduler, classes: Mapping[str, Any] | None = None,
        conditions: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        self._store(classes=classes, conditions=conditions)

    def _output(self, x: Tensor, present: Tensor | None, output_type: str) -> ImagePipelineOutput:
        images: Any = x if output_type == "latent" else ((self.scheduler.flow.values(x) + 1) / 2).clamp(0, 1)
        if output_type in ("np", "pil"):
            images = images.cpu().permute(0, 2, 3, 1).numpy()
        return ImagePipelineOutput(images=self.numpy_to_pil(images) if output_type == "pil" else images)


class BFNTextPipeline(_Generation):
    """Text from a Bayesian flow network: ``BFNTextPipeline.from_model(model)(batch_size=4).texts``.

    Args:
        transformer: a ``BFNNetwork``.
        scheduler: its scheduler.
        alphabet: the symbol of each class.
        tokenizer: a tokenizer as plain values (``bfn.core.plain.to_plain``), instead of an alphabet. Without
            either of the two, texts are the numbers of the classes.
        lengths, classes, conditions: lengths of the training data if they differ, names and shares of its classes, and
            its other conditions, as plain values. ``from_model`` fills these arguments in.
    """

    model_cpu_offload_seq = "transformer"
    default_calls = 50
    output_types = ("text", "np", "pt")
    facts = tuple(FACTS)
    draws_numbers = False

    def __init__(
        self, transformer: Denoiser, scheduler: DiscreteBFNScheduler, alphabet: str | None = None,
        tokenizer: Mapping[str, Any] | None = None, lengths: Mapping[str, Any] | None = None,
        classes: Mapping[str, Any] | None = None, conditions: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if alphabet is not None and len(alphabet) != scheduler.config["n_classes"]:
            raise UserError(f"alphabet of {len(alphabet)} symbols: expected {scheduler.config['n_classes']}")
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self._store(alphabet=alphabet, tokenizer=tokenizer, lengths=lengths, classes=classes, conditions=conditions)

    def _output(self, x: Tensor, present: Tensor | None, output_type: str) -> TextPipelineOutput:
        if output_type != "text":
            return TextPipelineOutput(texts=x if output_type == "pt" else x.cpu().numpy())
        codec = self.info[CODEC]
        if codec is not None:
            return TextPipelineOutput(texts=codec.decode(x, present))
        rows = x if present is None else [row[own] for row, own in zip(x, present, strict=True)]
        return TextPipelineOutput(texts=[" ".join(map(str, row.tolist())) for row in rows])


def _check_choices(what: str, values: Sequence[str], choices: Sequence[str]) -> None:
    """Raise a UserError for a value that is not one of the choices."""
    for value in values:
        if value not in choices:
            raise UserError(f"{what}{value!r}: expected one of {', '.join(choices)}")


def _one(generator: schedulers.Generators) -> torch.Generator | None:
    """Return the generator of what is drawn for the whole batch."""
    return generator[0] if isinstance(generator, list) else generator


# ``DiffusionPipeline.from_pretrained`` looks up the class of a saved pipeline among those of diffusers only.
for _pipeline in (BFNPipeline, BFNTextPipeline):
    setattr(diffusers, _pipeline.__name__, _pipeline)

# Saved pipelines name the module of a class. These are the modules of earlier versions.
for _module in ("networks", "pipelines"):
    sys.modules[f"{__name__}.{_module}"] = sys.modules[__name__]
