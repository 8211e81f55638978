"""Networks for weights that are there: a config that asks for more than its file holds is refused before it gets it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bfn import networks
from bfn.core.errors import UserError

BESIDE = 1 << 28
"""Bytes that a network may make beside those that its weights have: 256 MiB."""
MOST_PLACES = 1 << 20
"""Places that it may count, such as positions in a text: tables of angles are many times as large."""
MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
COUNTERS = (torch.arange, torch.linspace, torch.logspace)


class _Room(TorchFunctionMode):
    """Ends the making of more tensors, or of larger ones, than weights can fill; their sizes are told by "meta"."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = 100 + 4 * len(weights)
        self._bytes = BESIDE + 8 * sum(value.numel() for value in weights.values())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MAKERS or func in COUNTERS:
            outline = func(*args, **{**kwargs, "device": "meta"})
            self._tensors, self._bytes = self._tensors - 1, self._bytes - outline.nbytes
            if min(self._tensors, self._bytes) < 0 or (func in COUNTERS and outline.numel() > MOST_PLACES):
                raise UserError("weights of another architecture: the network is larger than its file")
        return func(*args, **kwargs)


def build_for(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> torch.nn.Module:
    """The network of a config that these weights fit, in memory that is bounded by theirs."""
    with _Room(weights):
        network = networks.build(config)
    compare(network, weights)
    return network


def compare(network: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Name the first weights that do not fit."""
    own = network.state_dict()
    missing = [name for name in own if name not in weights]
    foreign = [name for name in weights if name not in own]
    if missing or foreign:
        parts = [f"no {', '.join(missing[:3])}"] if missing else []
        parts += [f"{', '.join(foreign[:3])}, which the network does not have"] if foreign else []
        raise UserError(f"weights of another architecture: {'; '.join(parts)}")
    for name, value in own.items():
        if value.shape != weights[name].shape:
            raise UserError(
                f"weights of another architecture: {name} has shape {tuple(weights[name].shape)}, "
                f"the network's has {tuple(value.shape)}"
            )
