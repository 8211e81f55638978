"""Networks: small, readable, and ignorant of flows.

Every network is called as `network(inputs, t, label=None)`, keeps its arguments in `config`, and is rebuilt by `build`.
`MLP`, `Transformer` and `UNet` also take `present=`, False at padding, and by name their `conditions`:

>>> network = MLP(2, width=16)
>>> build(network.config)(torch.zeros(5, 2), torch.rand(5)).shape
torch.Size([5, 2])
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from bfn.core.errors import UserError, did_you_mean
from bfn.core.registry import Registry, registry
from bfn.networks.arguments import JSON
from bfn.networks.mlp import MLP
from bfn.networks.official import OfficialBinaryUNet, OfficialFlatUNet, OfficialTransformer
from bfn.networks.table import TableMLP, TableTransformer
from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet

NETWORKS: Registry[Callable[..., torch.nn.Module]] = registry("network")
"""Networks by the name that a stored config has."""

PLAIN = (bool, int, float, str, Sequence, Mapping, type(None))

__all__ = [
    "JSON",
    "MLP",
    "NETWORKS",
    "OfficialBinaryUNet",
    "OfficialFlatUNet",
    "OfficialTransformer",
    "TableMLP",
    "TableTransformer",
    "Transformer",
    "UNet",
    "accepts",
    "build",
]


def accepts(name: str, parameter: str) -> bool:
    """Whether the network of that name takes the parameter; no network that is not in `NETWORKS` does."""
    return name in NETWORKS and parameter in inspect.signature(NETWORKS[name]).parameters


def build(config: Mapping[str, JSON]) -> torch.nn.Module:
    """Build a network from its config, as {"name": "unet", "in_channels": 1, ...}; weights are freshly initialised."""
    arguments = dict(config)
    name = arguments.pop("name", None)
    if not isinstance(name, str) or name not in NETWORKS:
        raise UserError(f"network name {name!r}: expected one of {', '.join(NETWORKS)}{did_you_mean(name, NETWORKS)}")
    network = NETWORKS[name]
    try:
        inspect.signature(network).bind(**arguments)
    except TypeError as error:
        known = ", ".join(inspect.signature(network).parameters)
        raise UserError(f"network {name}: {error}; its arguments are {known}") from None
    strange = next((key for key, value in arguments.items() if not isinstance(value, PLAIN) or _is_nan(value)), None)
    if strange is not None:
        raise UserError(f"network {name}: {strange}={arguments[strange]!r:.40}: expected plain values, not NaN")
    try:
        return network(**arguments)
    except UserError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:  # torch's own word on sizes that do not go together
        raise UserError(f"network {name}: {(str(error).splitlines() or ['too large'])[0]}") from None


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
