# mypy: disable-error-code="no-untyped-call"
"""Networks across the border: this library's as diffusers models, and diffusers' U-Net as a network of this library."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.unets.unet_2d import UNet2DModel, UNet2DOutput
from torch import Tensor, nn

from bfn import networks
from bfn.errors import UserError
from bfn.flows import Shape

__all__ = ["BFNNetwork", "Denoiser", "UNetNetwork", "as_diffusers", "data_shape", "no_class"]


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
