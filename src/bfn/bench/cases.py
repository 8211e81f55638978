"""What is measured on: small real networks, and networks whose answer is ready."""

from __future__ import annotations

import torch
from torch import Tensor

from bfn import networks
from bfn.flows import ContinuousFlow, DiscreteFlow
from bfn.joint import JointFlow
from bfn.joint_head import JointHead
from bfn.model import BFN

__all__ = ["idle", "image_model", "inputs_of", "point_model", "table_model", "text_model"]


def image_model() -> BFN:
    """Images of 3 x 32 x 32, by a small U-Net that predicts noise."""
    return BFN(networks.build({"name": "unet", "in_channels": 3}), ContinuousFlow(1e-3), "noise", (3, 32, 32)).eval()


def text_model(length: int = 64, n_classes: int = 27) -> BFN:
    """Sequences of classes, by a small transformer."""
    network = networks.build({"name": "transformer", "n_classes": n_classes})
    return BFN(network, DiscreteFlow(n_classes), "logits", (length,)).eval()


def point_model() -> BFN:
    """Vectors of 16 numbers, by a perceptron: what is cheap to draw, so that all else shows."""
    network = networks.build({"name": "mlp", "in_features": 16, "width": 64, "n_blocks": 2})
    return BFN(network, ContinuousFlow(0.01), "preconditioned", (16,)).eval()


def table_model(width: int = 192) -> BFN:
    """A table of 15 columns of 2 to 40 classes and 5 of numbers, with the network of one vector that tables get."""
    sizes = (2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 24, 32, 40)
    classes = {f"class {i}": DiscreteFlow.with_separation(k) for i, k in enumerate(sizes)}
    numbers = {f"number {i}": ContinuousFlow(0.02) for i in range(5)}
    flow = JointFlow({**classes, **numbers})
    heads = {name: "logits" if name in classes else "preconditioned" for name in flow.parts}
    network = networks.build({"name": "mlp", "in_features": sum(sizes) + len(numbers), "width": width, "n_blocks": 3})
    return BFN(network, flow, JointHead.make(heads, flow, flat=True), {name: () for name in flow.parts}).eval()


def inputs_of(model: BFN, batch: int) -> tuple[Tensor, Tensor]:
    """What the model's network is shown at t = 0.5: its input and times."""
    u = torch.randn(batch, *model.flow.state_shape(model.data_shape), generator=torch.Generator().manual_seed(0))
    level = model.flow.noise_level(0.5, batch, u.ndim - 1, u)
    return model.head.inputs(model.flow, u, level), level.t


def idle(model: BFN, batch: int) -> BFN:
    """The same model with a network whose answer is ready: sampling from it costs the loop and nothing else."""
    answer = model.network(*inputs_of(model, batch)).detach()
    return BFN(lambda inputs, t: answer, model.flow, model.head, model.data_shape)
