"""Properties of the transformer and of the U-Net that other networks do not have."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet


def example(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose weights are nowhere zero."""
    torch.manual_seed(0)
    network = make().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network


def unet_example() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return example(lambda: UNet(2, channels=16, head_features=16)), torch.randn(3, 2, 16, 16), torch.rand(3)


@pytest.mark.parametrize("kernel_size", [0, 5])
def test_order_matters_in_both_directions(kernel_size: int) -> None:
    network = example(lambda: Transformer(3, width=16, n_blocks=2, n_heads=2, kernel_size=kernel_size))
    inputs, t = torch.randn(2, 9, 3, requires_grad=True), torch.rand(2)
    for position in (0, 8):
        (gradient,) = torch.autograd.grad(network(inputs, t)[:, position].sum(), inputs)
        assert (gradient.abs().amax(dim=-1) > 0).all()
    assert (network(inputs.flip(1), t).flip(1) - network(inputs, t)).abs().max() > 1e-3


def test_class_relabelling_is_followed_by_the_output() -> None:
    """A network whose stem and head know the classes only through shared columns treats them alike."""
    network = example(lambda: Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2))
    with torch.no_grad():
        for table in (network.stem.weight, network.head.weight.T, network.head.bias[None]):
            table.copy_(table.mean(-1, keepdim=True).expand_as(table))
    theta, t, order = torch.randn(2, 6, 4).softmax(-1), torch.rand(2), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(network(theta[..., order], t), network(theta, t)[..., order], rtol=1e-4, atol=1e-5)


def test_channels_last_computes_the_same_and_stays_channels_last() -> None:
    network, inputs, t = unet_example()
    expected = network(inputs, t)
    network = network.to(memory_format=torch.channels_last)
    output = network(inputs.contiguous(memory_format=torch.channels_last), t)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    assert output.is_contiguous(memory_format=torch.channels_last)


def test_every_pixel_sees_every_pixel_through_attention() -> None:
    network, inputs, t = unet_example()
    inputs.requires_grad_()
    network(inputs, t)[:, :, 0, 0].sum().backward()
    assert (inputs.grad.abs() > 0).all()


def test_channels_of_classes_come_back_to_their_places() -> None:
    """A network made to treat the two image channels alike answers swapped channels with swapped logits."""
    network = example(lambda: UNet(2, n_classes=3, channels=8, head_features=8))
    with torch.no_grad():
        swap = torch.tensor([3, 4, 5, 0, 1, 2])
        network.stem.weight.copy_((network.stem.weight + network.stem.weight[:, swap]) / 2)
        network.head.weight.copy_((network.head.weight + network.head.weight[swap]) / 2)
        network.head.bias.copy_((network.head.bias + network.head.bias[swap]) / 2)
    theta, t = torch.randn(2, 2, 8, 8, 3).softmax(-1), torch.rand(2)
    swapped = network(theta.flip(1), t).flip(1)
    torch.testing.assert_close(swapped, network(theta, t), rtol=1e-4, atol=1e-4)
