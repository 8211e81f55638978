"""Measure the forward time of the published networks against the same arithmetic written naively.

    python benchmarks/official_networks.py [--network text8|cifar10] [--batch 1] [--repeats 5] [--json FILE]

Naive means: attention as matmul, softmax, matmul; frequencies computed at every call; no regard for memory layout. Both
have the same weights and run on one thread. Their calls alternate, and the fastest call of each counts, in processor
time.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn import networks
from bfn.interop.official import PUBLISHED
from bfn.networks.official import AttentionBlock, OfficialFlatUNet, OfficialTransformer, ResidualBlock


def naive_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(c)) v on (..., length, c)."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def naive_transformer(network: OfficialTransformer, theta: Tensor, t: Tensor) -> Tensor:
    features = network.theta_in(2 * theta - 1) + network.position + network.time_in((2 * t - 1)[:, None, None])
    x = features
    for block in network.blocks:
        q, k, v = block.qkv(block.attention_norm(x)).chunk(3, -1)
        heads = [
            naive_attention(*parts)
            for parts in zip(*(part.chunk(block.n_heads, -1) for part in (q, k, v)), strict=True)
        ]
        x = x + block.attention_out(torch.cat(heads, -1))
        x = x + block.mlp_out(F.gelu(block.mlp_in(block.mlp_norm(x)), approximate="tanh"))
    return network.logits_out(torch.cat([network.norm(x), features], -1))


def naive_residual(block: ResidualBlock, x: Tensor, time: Tensor) -> Tensor:
    h = block.conv_1(F.silu(block.norm_1(x))) + block.time(time)[:, :, None, None]
    return block.skip(x) + block.conv_2(F.silu(block.norm_2(h)))


def naive_attention_block(block: AttentionBlock, x: Tensor) -> Tensor:
    weight, bias = block.qkv.weight[..., None, None], block.qkv.bias
    q, k, v = F.conv2d(block.norm(x), weight, bias).flatten(2).chunk(3, 1)
    attended = naive_attention(q.mT, k.mT, v.mT).mT.reshape(x.shape)
    return x + F.conv2d(attended, block.out.weight[..., None, None], block.out.bias)


def naive_flat_unet(network: OfficialFlatUNet, mu: Tensor, t: Tensor) -> Tensor:
    angle = 1000 * (t[:, None] + 0.001) * torch.logspace(0, -4, network.width // 2)
    time = F.silu(network.time_2(F.silu(network.time_1(torch.cat([angle.sin(), angle.cos()], 1)))))
    waves = torch.cat([2 * math.pi * 2**5 * mu, 2 * math.pi * 2**6 * mu], 1)
    h = network.conv_in(torch.cat([mu, waves.sin(), waves.cos()], 1))
    skips = [h]
    for block in network.down:
        h = naive_residual(block, h, time)
        skips.append(h)
    h = naive_residual(network.middle_1, h, time)
    h = naive_attention_block(network.middle_attention, h)
    h = naive_residual(network.middle_2, h, time)
    for block in network.up:
        h = naive_residual(block, torch.cat([h, skips.pop()], 1), time)
    h = network.conv_out(F.silu(network.norm_out(h)))
    return network.pixel_out(torch.cat([mu, h], 1).movedim(1, -1)).movedim(-1, 1)


def fastest(calls: Sequence[Callable[[], Tensor]], repeats: int) -> list[float]:
    """The fastest of several calls of each, in seconds of processor time, which a busy machine disturbs least."""
    best = [math.inf] * len(calls)
    for _ in range(repeats + 1):
        for index, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[index] = min(best[index], time.thread_time() - start)
    return best


@torch.inference_mode()
def compare(name: str, batch: int = 1, repeats: int = 5) -> dict[str, float | int | str]:
    """Seconds a forward pass, naive seconds, their ratio, and how far apart the outputs are."""
    published = {"text8": "text8_discrete", "cifar10": "cifar10_continuous_256bins"}[name]
    configuration = PUBLISHED[published]
    network = networks.build(configuration.network).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # zero-initialised branches would make the comparison of outputs empty
        fan_in = max(1, parameter[0].numel())
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in))
    shape = (batch, *configuration.flow.state_shape(configuration.data_shape))
    inputs, t = torch.rand(shape, generator=generator), torch.rand(batch, generator=generator)
    naive = naive_transformer if isinstance(network, OfficialTransformer) else naive_flat_unet
    plain = copy.deepcopy(network)
    for parameter in plain.parameters():  # as modules make them: our networks keep convolutions channels-last
        parameter.data = parameter.data.contiguous()
    ours, theirs = network(inputs, t), naive(plain, inputs, t)
    seconds, naive_seconds = fastest([lambda: network(inputs, t), lambda: naive(plain, inputs, t)], repeats)
    return {
        "network": name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "batch": batch,
        "seconds": seconds,
        "naive_seconds": naive_seconds,
        "ratio": seconds / naive_seconds,
        "relative_difference": float((ours - theirs).abs().max() / theirs.abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=["text8", "cifar10"], nargs="+", default=["text8", "cifar10"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [compare(name, arguments.batch, arguments.repeats) for name in arguments.network]
    for result in results:
        print(
            "{network}: {seconds:.3f} s a forward pass, naive {naive_seconds:.3f} s, ratio {ratio:.3f} "
            "(batch {batch}, outputs differ by {relative_difference:.1e})".format(**result)
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
