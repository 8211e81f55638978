# mypy: disable-error-code="no-untyped-call"
"""Pipelines: samples as users of diffusers expect to get them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.outputs import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from bfn.config import decode, encode
from bfn.data import Alphabet
from bfn.errors import UserError
from bfn.info import Classes, Label, ModelInfo
from bfn.interop.diffusers.networks import Denoiser, as_diffusers, data_shape, no_class
from bfn.interop.diffusers.schedulers import (
    BFNScheduler,
    BFNSchedulerOutput,
    DiscreteBFNScheduler,
    Generators,
    TableScheduler,
)
from bfn.model import BFN

__all__ = ["BFNPipeline", "BFNTextPipeline", "TextPipelineOutput"]

OnStepEnd = Callable[[Any, int, Tensor, dict[str, Tensor]], dict[str, Tensor]]
"""callback(pipeline, index, timestep, tensors) -> tensors to go on with."""

SEEN_BY_CALLBACKS = ("latents", "pred_original_sample", "model_output")


@dataclass
class TextPipelineOutput(BaseOutput):
    """texts: strings, one a sample; or classes, (batch, length)."""

    texts: list[str] | np.ndarray | Tensor


class _Generation(DiffusionPipeline):
    """The loop that both pipelines share."""

    _callback_tensor_inputs: ClassVar = list(SEEN_BY_CALLBACKS)
    scheduler: TableScheduler

    @torch.no_grad()
    def _generate(
        self,
        network: Denoiser,
        info: ModelInfo,
        batch_size: int,
        num_inference_steps: int,
        timesteps: Sequence[float] | None,
        class_labels: Label | None,
        guidance_scale: float,
        generator: Generators,
        latents: Tensor | None,
        callback_on_step_end: OnStepEnd | None,
        shown: Sequence[str],
    ) -> Tensor:
        """Data: (batch, *data_shape)."""
        unknown = [name for name in shown if name not in SEEN_BY_CALLBACKS]
        if unknown:
            raise UserError(f"callback tensor {unknown[0]!r}: expected some of {', '.join(SEEN_BY_CALLBACKS)}")
        device, none, guided = torch.device(self._execution_device), no_class(network), guidance_scale != 1
        if none is None and class_labels is not None:
            raise UserError(f"class_labels={class_labels}: this network knows no classes; leave them out")
        draws = generator[0] if isinstance(generator, list) else generator
        label = None if none is None else info.labels(class_labels, batch_size, draws, device)
        if guided and label is None:
            raise UserError(f"guidance_scale={guidance_scale}: it needs classes to guide to; give class_labels")
        if none is not None:
            nothing = torch.full((batch_size,), none, device=device)
            label = nothing if label is None else label.where(label >= 0, none)
            label = torch.cat([label, nothing]) if guided else label

        if timesteps is None:
            self.scheduler.set_timesteps(num_inference_steps, device)
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
            step = self.scheduler.step(model_output, timestep, latents, generator=generator)
            if not isinstance(step, BFNSchedulerOutput):
                raise TypeError(f"scheduler {type(self.scheduler).__name__}: expected one of bfn.interop.diffusers")
            latents = step.prev_sample
            if callback_on_step_end is not None:
                seen = (latents, step.pred_original_sample, model_output)
                tensors = {name: tensor for name, tensor in zip(SEEN_BY_CALLBACKS, seen, strict=True) if name in shown}
                latents = callback_on_step_end(self, index, timestep, tensors).get("latents", latents)
        self.maybe_free_model_hooks()
        return self.scheduler.flow.decode(latents)


class BFNPipeline(_Generation):
    """Images from a Bayesian flow network: ``BFNPipeline.from_model(model)(batch_size=4).images``.

    unet: diffusers' U-Net or a :class:`BFNNetwork`. scheduler: a :class:`BFNScheduler`, or a
    :class:`DiscreteBFNScheduler` for pixels of n_classes values. classes: names and shares of the model's classes;
    :meth:`from_model` fills them in.
    """

    model_cpu_offload_seq: str | None = "unet"  # type: ignore[assignment]

    def __init__(
        self,
        unet: Denoiser,
        scheduler: BFNScheduler | DiscreteBFNScheduler,
        classes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.info = ModelInfo(classes=decode(Classes | None, classes, "classes"))
        self.register_modules(unet=unet, scheduler=scheduler)
        self.register_to_config(classes=classes)

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """A pipeline around a model of this library; settings are the scheduler's, such as ``solver``."""
        scheduler = BFNScheduler if model.flow.has_range else DiscreteBFNScheduler
        classes = None if model.info.classes is None else encode(model.info.classes)
        return cls(as_diffusers(model.network, model.data_shape), scheduler.from_model(model, **settings), classes)

    def __call__(
        self,
        batch_size: int = 1,
        num_inference_steps: int = 20,
        class_labels: Label | None = None,
        guidance_scale: float = 1.0,
        generator: Generators = None,
        latents: Tensor | None = None,
        timesteps: Sequence[float] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> ImagePipelineOutput | tuple[Any]:
        """Generate images.

        num_inference_steps: network calls. class_labels: one for all, or one each, numbers or names, -1 for none; drawn
        by their shares in the data if None. guidance_scale: of classifier-free guidance, 1 for none; plain, as in
        other pipelines: ``bfn.Guidance(scale, rescale=0)``.
        latents: standard normal noise to start from. timesteps: instead of num_inference_steps.
        output_type: "pil"; "np" (batch, height, width, channel) or "pt" (batch, channel, height, width) in [0, 1]; or
        "latent": the data as the model has them, floats in [-1, 1] or classes.
        callback_on_step_end: called as (pipeline, index, timestep, tensors), returns tensors to go on with.
        """
        if output_type not in ("pil", "np", "pt", "latent"):
            raise UserError(f"output_type={output_type!r}: expected 'pil', 'np', 'pt' or 'latent'")
        x = self._generate(
            self.unet,
            self.info,
            batch_size,
            num_inference_steps,
            timesteps,
            class_labels,
            guidance_scale,
            generator,
            latents,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
        )
        images: Any = x if output_type == "latent" else self._images(x, output_type)
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _images(self, x: Tensor, output_type: str) -> Any:
        share = ((self.scheduler.flow.values(x) + 1) / 2).clamp(0, 1)
        if output_type == "pt":
            return share
        array = share.cpu().permute(0, 2, 3, 1).numpy()
        return array if output_type == "np" else self.numpy_to_pil(array)


class BFNTextPipeline(_Generation):
    """Text from a Bayesian flow network: ``BFNTextPipeline.from_model(model)(batch_size=4).texts``.

    alphabet: the symbol of each class; without one, texts are numbers of classes.
    """

    model_cpu_offload_seq: str | None = "transformer"  # type: ignore[assignment]

    def __init__(self, transformer: Denoiser, scheduler: DiscreteBFNScheduler, alphabet: str | None = None) -> None:
        super().__init__()
        if alphabet is not None and len(alphabet) != scheduler.config["n_classes"]:
            raise UserError(f"alphabet of {len(alphabet)} symbols: expected {scheduler.config['n_classes']}")
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.register_to_config(alphabet=alphabet)

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """A pipeline around a model of this library; settings are the scheduler's, such as ``solver``."""
        scheduler = DiscreteBFNScheduler.from_model(model, **settings)
        return cls(as_diffusers(model.network, model.data_shape), scheduler, model.info.alphabet)

    def __call__(
        self,
        batch_size: int = 1,
        num_inference_steps: int = 50,
        generator: Generators = None,
        latents: Tensor | None = None,
        timesteps: Sequence[float] | None = None,
        output_type: str = "text",
        return_dict: bool = True,
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> TextPipelineOutput | tuple[Any]:
        """Generate text; output_type "text", or "np" or "pt" for classes, (batch, length). See :class:`BFNPipeline`."""
        if output_type not in ("text", "np", "pt"):
            raise UserError(f"output_type={output_type!r}: expected 'text', 'np' or 'pt'")
        x = self._generate(
            self.transformer,
            ModelInfo(),
            batch_size,
            num_inference_steps,
            timesteps,
            None,
            1.0,
            generator,
            latents,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
        )
        texts = self._texts(x) if output_type == "text" else x if output_type == "pt" else x.cpu().numpy()
        return TextPipelineOutput(texts=texts) if return_dict else (texts,)

    def _texts(self, x: Tensor) -> list[str]:
        if self.config["alphabet"] is None:
            return [" ".join(map(str, row)) for row in x.tolist()]
        return Alphabet(self.config["alphabet"]).decode(x)
