"""Networks across the border: this library's as diffusers models, and diffusers' U-Net as a network of this library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d import UNet2DModel, UNet2DOutput
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.outputs import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor, nn

from bfn import networks
from bfn.core.conditions import Classes, Label, labels_of
from bfn.core.errors import UserError
from bfn.core.flows import Shape
from bfn.core.info import ModelInfo
from bfn.core.model import BFN
from bfn.core.plain import from_plain, to_plain
from bfn.data.tokenizers import Tokenizer
from bfn.interop.diffusers.schedulers import BFNScheduler, DiscreteBFNScheduler, Generators, TableScheduler

# mypy: disable-error-code="no-untyped-call"


class BFNNetwork(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """A network of this library, called, saved and loaded as diffusers does with its own.

    architecture: its config, as in :func:`bfn.networks.build`. data_shape: shape of one sample.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self, architecture: Mapping[str, Any], data_shape: Sequence[int], num_train_timesteps: int = 1000
    ) -> None:
        super().__init__()
        self.network = networks.build(architecture)

    def forward(
        self, sample: Tensor, timestep: Tensor | float, class_labels: Tensor | None = None, return_dict: bool = True
    ) -> UNet2DOutput | tuple[Tensor]:
        """sample: what ``scheduler.scale_model_input`` gives. timestep: one, or (batch,). class_labels: -1 for none."""
        timestep = torch.as_tensor(timestep, dtype=torch.float32, device=sample.device).expand(len(sample))
        t = (1 - timestep / self.config["num_train_timesteps"]).to(sample.dtype)
        raw = self.network(sample, t) if class_labels is None else self.network(sample, t, label=class_labels)
        return UNet2DOutput(sample=raw) if return_dict else (raw,)


class UNetNetwork(nn.Module):
    """diffusers' U-Net as a network of this library: train it with ``bfn.BFN(UNetNetwork(unet), flow, ...)``.

    A U-Net with class embeddings has one more of them than there are classes: the last one stands for no class.
    """

    def __init__(self, unet: UNet2DModel, num_train_timesteps: int = 1000) -> None:
        super().__init__()
        self.unet, self.num_train_timesteps = unet, num_train_timesteps

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """inputs: (batch, channel, height, width). t: (batch,). label: (batch,), -1 for no class."""
        none = no_class(self.unet)
        if none is not None:
            label = t.new_full(t.shape, none, dtype=torch.long) if label is None else label.where(label >= 0, none)
        output: Tensor = self.unet(inputs, (1 - t) * self.num_train_timesteps, label, return_dict=False)[0]
        return output


Denoiser = UNet2DModel | BFNNetwork


def no_class(network: Denoiser) -> int | None:
    """The label that stands for no class, or None where the network has no classes."""
    if isinstance(network, BFNNetwork):
        return -1 if network.config["architecture"].get("n_labels") else None
    classes = network.config["num_class_embeds"]
    return None if classes is None else int(classes) - 1


def data_shape(network: Denoiser) -> Shape:
    """Shape of one sample."""
    if isinstance(network, BFNNetwork):
        return tuple(network.config["data_shape"])
    size = network.config["sample_size"]
    return (network.config["in_channels"], *((size, size) if isinstance(size, int) else size))


def as_diffusers(network: Any, shape: Shape) -> Denoiser:
    """A network of a ``bfn.BFN`` as a diffusers model, weights and all."""
    if isinstance(network, UNetNetwork):
        if network.num_train_timesteps != 1000:
            raise UserError(f"num_train_timesteps={network.num_train_timesteps}: a pipeline made from a model has 1000")
        unet: UNet2DModel = network.unet
        return unet
    config = getattr(network, "config", None)
    if not isinstance(network, nn.Module) or not isinstance(config, Mapping):
        name = type(network).__name__
        raise UserError(f"network {name}: only a network of bfn.networks or a UNetNetwork goes into a pipeline")
    wrapped: BFNNetwork = BFNNetwork(dict(config), list(shape))
    wrapped.network = network
    return wrapped


# mypy: disable-error-code="no-untyped-call"


OnStepEnd = Callable[[Any, int, Tensor, dict[str, Tensor]], dict[str, Tensor]]
"""callback(pipeline, index, timestep, tensors) -> tensors to go on with."""

SEEN_BY_CALLBACKS = ("latents", "pred_original_sample", "model_output")


@dataclass
class TextPipelineOutput(BaseOutput):
    """texts: strings, one a sample; or classes, (batch, length)."""

    texts: list[str] | np.ndarray | Tensor


class _Generation(DiffusionPipeline):
    """The loop that both pipelines share. A subclass has its network, and the forms in which its samples are given."""

    _callback_tensor_inputs: ClassVar = list(SEEN_BY_CALLBACKS)
    default_calls: ClassVar[int]
    output_types: ClassVar[tuple[str, ...]]
    info: ModelInfo
    scheduler: TableScheduler

    def _network(self) -> Denoiser:
        raise NotImplementedError

    def _output(self, x: Tensor, output_type: str) -> BaseOutput:
        """Data (batch, *data_shape) in one of the output types."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        num_inference_steps: int | None = None,
        class_labels: Label | None = None,
        guidance_scale: float = 1.0,
        generator: Generators = None,
        latents: Tensor | None = None,
        timesteps: Sequence[float] | None = None,
        output_type: str | None = None,
        return_dict: bool = True,
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> Any:
        """Generate samples.

        num_inference_steps: network calls; 20 for images and 50 for text if None. class_labels: one for all, or one
        each, numbers or names, -1 for none; drawn by their shares in the data if None. guidance_scale: of
        classifier-free guidance, 1 for none; plain, as in other pipelines: ``bfn.Guidance(scale, rescale=0)``.
        latents: standard normal noise to start from. timesteps: instead of num_inference_steps.
        output_type: of images "pil" if None; "np" (batch, height, width, channel) or "pt" (batch, channel, height,
        width) in [0, 1]; or "latent": the data as the model has them, floats in [-1, 1] or classes. Of text "text" if
        None; "np" or "pt" for classes, (batch, length).
        callback_on_step_end: called as (pipeline, index, timestep, tensors), returns tensors to go on with.
        """
        calls = self.default_calls if num_inference_steps is None else num_inference_steps
        output_type = self.output_types[0] if output_type is None else output_type
        if output_type not in self.output_types:
            raise UserError(f"output_type={output_type!r}: expected one of {', '.join(self.output_types)}")
        shown = callback_on_step_end_tensor_inputs
        unknown = [name for name in shown if name not in SEEN_BY_CALLBACKS]
        if unknown:
            raise UserError(f"callback tensor {unknown[0]!r}: expected some of {', '.join(SEEN_BY_CALLBACKS)}")
        network, device, guided = self._network(), torch.device(self._execution_device), guidance_scale != 1
        label = self._labels(class_labels, batch_size, guidance_scale, generator, device)

        if timesteps is None:
            self.scheduler.set_timesteps(calls, device)
        else:
            self.scheduler.set_timesteps(device=device, timesteps=timesteps)
        shape = (batch_size, *self.scheduler.flow.state_shape(data_shape(network)))
        if latents is None:
            latents = randn_tensor(shape, generator=generator, device=device, dtype=network.dtype)
        elif tuple(latents.shape) != shape:
            raise UserError(f"latents of shape {tuple(latents.shape)}: expected standard normal ones of shape {shape}")
        latents = latents.to(device) * self.scheduler.init_noise_sigma

        for index, timestep in enumerate(self.progress_bar(self.scheduler.timesteps)):
            inputs = self.scheduler.scale_model_input(latents, timestep)
            inputs = torch.cat([inputs, inputs]) if guided else inputs
            model_output = network(inputs, timestep, class_labels=label, return_dict=False)[0]
            if guided:
                conditional, unconditional = model_output.chunk(2)
                model_output = torch.lerp(unconditional, conditional, guidance_scale)
            latents, predicted = self.scheduler.step(model_output, timestep, latents, generator, return_dict=False)
            if callback_on_step_end is not None:
                seen = (latents, predicted, model_output)
                tensors = {name: tensor for name, tensor in zip(SEEN_BY_CALLBACKS, seen, strict=True) if name in shown}
                latents = callback_on_step_end(self, index, timestep, tensors).get("latents", latents)
        self.maybe_free_model_hooks()
        output = self._output(self.scheduler.flow.decode(latents), output_type)
        return output if return_dict else output.to_tuple()

    def _labels(
        self, given: Label | None, n: int, scale: float, generator: Generators, device: torch.device
    ) -> Tensor | None:
        """What the network is told: n classes, and n times none after them where they are guided to."""
        none = no_class(self._network())
        if none is None and given is not None:
            raise UserError(f"class_labels={given}: this network knows no classes; leave them out")
        draws = generator[0] if isinstance(generator, list) else generator
        label = None if none is None else labels_of(self.info.classes, given, n, draws, device)
        if scale != 1 and label is None:
            raise UserError(f"guidance_scale={scale}: it needs classes to guide to; give class_labels")
        if none is None:
            return None
        nothing = torch.full((n,), none, device=device)
        label = nothing if label is None else label.where(label >= 0, none)
        return label if scale == 1 else torch.cat([label, nothing])


class BFNPipeline(_Generation):
    """Images from a Bayesian flow network: ``BFNPipeline.from_model(model)(batch_size=4).images``.

    unet: diffusers' U-Net or a :class:`BFNNetwork`. scheduler: a :class:`BFNScheduler`, or a
    :class:`DiscreteBFNScheduler` for pixels of n_classes values. classes: names and shares of the model's classes;
    :meth:`from_model` fills them in.
    """

    model_cpu_offload_seq: str | None = "unet"  # type: ignore[assignment]
    unet: Denoiser
    default_calls = 20
    output_types = ("pil", "np", "pt", "latent")

    def __init__(
        self, unet: Denoiser, scheduler: BFNScheduler | DiscreteBFNScheduler, classes: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.info = ModelInfo(classes=from_plain(Classes | None, classes, "classes"))
        self.register_modules(unet=unet, scheduler=scheduler)
        self.register_to_config(classes=classes)

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """A pipeline around a model of this library; settings are the scheduler's, such as ``solver``."""
        scheduler = BFNScheduler if model.flow.has_range else DiscreteBFNScheduler
        classes = None if model.info.classes is None else to_plain(model.info.classes)
        return cls(as_diffusers(model.network, model.data_shape), scheduler.from_model(model, **settings), classes)

    def _network(self) -> Denoiser:
        return self.unet

    def _output(self, x: Tensor, output_type: str) -> ImagePipelineOutput:
        images: Any = x if output_type == "latent" else ((self.scheduler.flow.values(x) + 1) / 2).clamp(0, 1)
        if output_type in ("np", "pil"):
            images = images.cpu().permute(0, 2, 3, 1).numpy()
        return ImagePipelineOutput(images=self.numpy_to_pil(images) if output_type == "pil" else images)


class BFNTextPipeline(_Generation):
    """Text from a Bayesian flow network: ``BFNTextPipeline.from_model(model)(batch_size=4).texts``.

    alphabet: the symbol of each class. tokenizer: the same for other tokens, as plain values (``bfn.storage.models.encode``).
    Without either, texts are numbers of classes.
    """

    model_cpu_offload_seq: str | None = "transformer"  # type: ignore[assignment]
    transformer: Denoiser
    default_calls = 50
    output_types = ("text", "np", "pt")

    def __init__(
        self,
        transformer: Denoiser,
        scheduler: DiscreteBFNScheduler,
        alphabet: str | None = None,
        tokenizer: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if alphabet is not None and len(alphabet) != scheduler.config["n_classes"]:
            raise UserError(f"alphabet of {len(alphabet)} symbols: expected {scheduler.config['n_classes']}")
        self.info = ModelInfo(alphabet=alphabet, tokenizer=from_plain(Tokenizer | None, tokenizer, "tokenizer"))
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.register_to_config(alphabet=alphabet, tokenizer=tokenizer)

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """A pipeline around a model of this library; settings are the scheduler's, such as ``solver``."""
        scheduler = DiscreteBFNScheduler.from_model(model, **settings)
        network, info = as_diffusers(model.network, model.data_shape), model.info
        return cls(network, scheduler, info.alphabet, to_plain(info.tokenizer))

    def _network(self) -> Denoiser:
        return self.transformer

    def _output(self, x: Tensor, output_type: str) -> TextPipelineOutput:
        if output_type != "text":
            return TextPipelineOutput(texts=x if output_type == "pt" else x.cpu().numpy())
        tokenizer = self.info.text_tokenizer
        if tokenizer is None:
            return TextPipelineOutput(texts=[" ".join(map(str, row)) for row in x.tolist()])
        return TextPipelineOutput(texts=tokenizer.decode(x))
