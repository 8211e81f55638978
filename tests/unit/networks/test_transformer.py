"""What only the transformer promises."""

import pytest
import torch

from bfn.networks.transformer import Convolution, Transformer


def example(kernel_size: int) -> tuple[Transformer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    network = Transformer(3, width=16, n_blocks=2, n_heads=2, kernel_size=kernel_size).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network, torch.randn(2, 9, 3), torch.rand(2)


@pytest.mark.parametrize("kernel_size", [0, 5])
def test_order_matters_in_both_directions(kernel_size: int) -> None:
    network, inputs, t = example(kernel_size)
    inputs.requires_grad_()
    for position in (0, 8):
        (gradient,) = torch.autograd.grad(network(inputs, t)[:, position].sum(), inputs)
        assert (gradient.abs().amax(dim=-1) > 0).all()
    assert (network(inputs.flip(1), t).flip(1) - network(inputs, t)).abs().max() > 1e-3


def test_a_constant_sequence_stays_constant() -> None:
    network, inputs, t = example(kernel_size=0)
    constant = inputs[:, :1].expand(2, 9, 3)
    output = network(constant, t)
    # Positions enter through the attention's weights alone, and these do not matter where all values are equal.
    torch.testing.assert_close(output, output[:, :1].expand_as(output), rtol=1e-4, atol=1e-5)


def test_class_relabelling_is_followed_by_the_output() -> None:
    """A network whose stem and head know the classes only through shared columns treats them alike."""
    torch.manual_seed(0)
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for table in (network.stem.weight, network.head.weight.T, network.head.bias[None]):
            table.copy_(table.mean(-1, keepdim=True).expand_as(table))
    theta, t, order = torch.randn(2, 6, 4).softmax(-1), torch.rand(2), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(network(theta[..., order], t), network(theta, t)[..., order], rtol=1e-4, atol=1e-5)


def test_convolution_is_along_the_sequence() -> None:
    torch.manual_seed(0)
    layer, inputs = Convolution(6, kernel_size=5), torch.randn(2, 9, 6)
    plain = layer.out(torch.nn.functional.silu(layer.conv(inputs.mT).mT))
    torch.testing.assert_close(layer(inputs), plain)
