"""What only the U-Net promises."""

import torch

from bfn.networks.unet import UNet


def example(**arguments: object) -> tuple[UNet, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    network = UNet(2, channels=16, head_features=16, **arguments).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network, torch.randn(3, 2, 16, 16), torch.rand(3)


def test_channels_last_computes_the_same_and_stays_channels_last() -> None:
    network, inputs, t = example(patch=1)
    expected = network(inputs, t)
    network = network.to(memory_format=torch.channels_last)
    output = network(inputs.contiguous(memory_format=torch.channels_last), t)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    assert output.is_contiguous(memory_format=torch.channels_last)


def test_every_pixel_sees_every_pixel_through_attention() -> None:
    network, inputs, t = example()
    inputs.requires_grad_()
    network(inputs, t)[:, :, 0, 0].sum().backward()
    assert (inputs.grad.abs() > 0).all()


def test_channels_of_classes_come_back_to_their_places() -> None:
    """A network made to treat the two image channels alike answers swapped channels with swapped logits."""
    torch.manual_seed(0)
    network = UNet(2, n_classes=3, channels=8, head_features=8).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        swap = torch.tensor([3, 4, 5, 0, 1, 2])
        network.stem.weight.copy_((network.stem.weight + network.stem.weight[:, swap]) / 2)
        network.head.weight.copy_((network.head.weight + network.head.weight[swap]) / 2)
        network.head.bias.copy_((network.head.bias + network.head.bias[swap]) / 2)
    theta, t = torch.randn(2, 2, 8, 8, 3).softmax(-1), torch.rand(2)
    swapped = network(theta.flip(1), t).flip(1)
    torch.testing.assert_close(swapped, network(theta, t), rtol=1e-4, atol=1e-4)
