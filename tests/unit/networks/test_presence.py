"""Padding changes nothing: what is present gives what it gives alone."""

import pytest
import torch
from torch import Tensor, nn

from bfn.networks.mlp import MLP
from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet

CONDITIONS = {"prompt": {"shape": [3], "n_classes": 4}}
SEQUENCES = {
    "classes": {"n_classes": 5},
    "convolution": {"n_classes": 5, "kernel_size": 5},
    "numbers": {"in_features": 3, "out_features": 2, "kernel_size": 3},
    "conditions": {"n_classes": 5, "conditions": CONDITIONS},
}
IMAGES = {
    "one-level": {"multipliers": (1,), "attention_levels": ()},
    "attention": {"multipliers": (1, 2), "attention_levels": (0, 1)},
    "deep": {"multipliers": (1, 2, 2), "attention_levels": (2,), "n_blocks": 1},
    "patch": {"multipliers": (1, 2), "patch": 2, "n_blocks": 1},
    "classes": {"multipliers": (1, 2), "n_classes": 3, "n_blocks": 1},
    "conditions": {"multipliers": (1, 2), "n_blocks": 1, "conditions": CONDITIONS},
}


def as_if_trained(network: nn.Module) -> nn.Module:
    """Layers that start as zero are drawn at random, so that nothing is equal because it is nothing."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return network.eval()


def transformer(case: str, **arguments: object) -> Transformer:
    torch.manual_seed(0)
    network = Transformer(**{"width": 16, "n_blocks": 2, "n_heads": 2, **SEQUENCES[case], **arguments})
    return as_if_trained(network)


def unet(case: str) -> UNet:
    torch.manual_seed(0)
    return as_if_trained(UNet(2, **{"channels": 8, "head_features": 8, **IMAGES[case]}))


def drawn(*shape: int, classes: bool) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return (2 * values).softmax(-1) if classes else values


@pytest.mark.parametrize("length", [1, 5, 11])
@pytest.mark.parametrize("case", SEQUENCES)
def test_a_padded_sequence_gives_what_it_gives_alone(case: str, length: int) -> None:
    network = transformer(case)
    padded, t = drawn(2, 12, network.size_in, classes=network.discrete), torch.tensor([0.3, 0.8])
    present = torch.arange(12).expand(2, 12) < length
    alone, among = network(padded[:, :length], t), network(padded, t, present=present)
    torch.testing.assert_close(among[:, :length], alone, rtol=1e-5, atol=1e-6)
    assert among.isfinite().all()
    # The test can fail: without a mask the padding is seen, unless no place looks at another.
    assert (network(padded, t)[:, :length] - alone).abs().max() > 1e-3


def test_sequences_of_different_lengths_in_one_batch_and_padding_in_front() -> None:
    network, lengths, t = transformer("convolution"), [3, 12, 7], torch.tensor([0.3, 0.8, 0.5])
    padded = drawn(3, 12, 5, classes=True)
    behind = torch.arange(12) < torch.tensor(lengths)[:, None]
    after, before = network(padded, t, present=behind), network(padded, t, present=behind.flip(1))
    for i, length in enumerate(lengths):
        for output, part in ((after, slice(0, length)), (before, slice(12 - length, 12))):
            alone = network(padded[i : i + 1, part], t[i : i + 1])
            torch.testing.assert_close(output[i : i + 1, part], alone, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("corner", [(0, 0), (8, 4)])
@pytest.mark.parametrize("sides", [(4, 8), (8, 8)])
@pytest.mark.parametrize("case", IMAGES)
def test_a_padded_image_gives_what_it_gives_alone(case: str, sides: tuple[int, int], corner: tuple[int, int]) -> None:
    network = unet(case)
    padded = drawn(2, 2, 16, 12, *([3] if network.n_classes else []), classes=network.n_classes > 0)
    t = torch.tensor([0.3, 0.8])
    rows, columns = (slice(start, start + side) for start, side in zip(corner, sides, strict=True))
    present = torch.zeros(2, 1, 16, 12, dtype=torch.bool)
    present[:, :, rows, columns] = True
    alone, among = network(padded[:, :, rows, columns], t), network(padded, t, present=present)
    torch.testing.assert_close(among[:, :, rows, columns], alone, rtol=1e-5, atol=1e-5)
    assert among.isfinite().all()
    assert (network(padded, t)[:, :, rows, columns] - alone).abs().max() > 1e-3
    assert torch.equal(network(padded, t, present=present.expand(2, 2, 16, 12)), among)


def half_present(case: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Return a network, two inputs, their times, and a mask of which half of each is present."""
    present = torch.arange(8) < 4
    if case == "transformer":
        return transformer("convolution"), drawn(2, 8, 5, classes=True), torch.rand(2), present.expand(2, 8)
    return unet("attention"), drawn(2, 2, 8, 8, classes=False), torch.rand(2), present.expand(2, 1, 8, 8)


@pytest.mark.parametrize("case", ["transformer", "unet"])
def test_what_stands_at_padding_does_not_matter_not_even_to_the_gradient(case: str) -> None:
    network, inputs, t, present = half_present(case)
    there = present.expand(2, 2, 8, 8) if case == "unet" else present
    network(inputs.requires_grad_(), t, present=present)[there].square().sum().backward()
    assert (inputs.grad[there] != 0).all()
    assert (inputs.grad[~there] == 0).all()


@pytest.mark.parametrize("case", ["transformer", "unet"])
def test_a_sample_of_padding_alone_is_finite_and_leaves_the_others_alone(case: str) -> None:
    network, inputs, t, present = half_present(case)
    present = torch.stack([torch.ones_like(present[0]), torch.zeros_like(present[1])])
    output = network(inputs, t, present=present)
    torch.testing.assert_close(output[:1], network(inputs[:1], t[:1]), rtol=1e-5, atol=1e-5)
    assert output.isfinite().all()
    output.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_absent_entries_of_a_vector_say_nothing(n_classes: int) -> None:
    network = as_if_trained(MLP(4, n_classes=n_classes, width=16))
    inputs, t = drawn(2, 4, *([3] if n_classes else []), classes=n_classes > 0), torch.rand(2)
    present = torch.tensor([[True, True, False, True], [False, True, True, True]])
    nothing = torch.where(present[..., None], inputs, 1 / 3) if n_classes else torch.where(present, inputs, 0.0)
    masked = network(inputs, t, present=present)
    torch.testing.assert_close(masked[present], network(nothing, t)[present], rtol=1e-5, atol=1e-6)
    assert (masked - network(inputs, t))[present].abs().max() > 1e-3


@pytest.mark.parametrize("case", ["transformer", "unet"])
def test_one_graph_and_half_precision_with_a_mask(case: str) -> None:
    network, inputs, t, present = half_present(case)
    exact = network(inputs, t, present=present)
    torch.compiler.reset()
    captured = torch.compile(network, fullgraph=True, backend="eager")
    assert torch.equal(captured(inputs, t, present=present), exact)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(inputs, t, present=present).float()
    assert (rough - exact).norm() < 0.05 * exact.norm()
