"""Networks: torch modules that predict the data from a noisy state. They know nothing about flows.

Every network is called as ``network(inputs, t, label=None)``, keeps its arguments in ``config``, and is rebuilt from it
by ``build``. `MLP`, `Transformer` and `UNet` also take ``present=``, False at padding, and their named conditions.
Buffers that are no weights, such as frequencies, are set by a module's ``reset_constants()``.

>>> network = MLP(2, width=16)
>>> build(network.config)(torch.zeros(5, 2), torch.rand(5)).shape
torch.Size([5, 2])
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from bfn.core.errors import UserError
from bfn.core.registry import Registry, registry
from bfn.networks.conditioning import DEPTHS, require_positive
from bfn.networks.mlp import MLP, TableMLP
from bfn.networks.official import OfficialBinaryUNet, OfficialFlatUNet, OfficialTransformer
from bfn.networks.transformer import TableTransformer, Transformer
from bfn.networks.unet import UNet

__all__ = [
    "MLP", "NETWORKS", "OfficialBinaryUNet", "OfficialFlatUNet", "OfficialTransformer", "TableMLP", "TableTransformer",
    "Transformer", "UNet", "build",
]  # fmt: skip

NETWORKS: Registry[Callable[..., torch.nn.Module]] = registry("network")
"""Classes of networks by the name in a stored config."""

PLAIN = (bool, int, float, str, Sequence, Mapping, type(None))
"""Types of the arguments in a config."""

RANDOM = (
    init.kaiming_uniform_, init.uniform_, init.normal_, Tensor.uniform_, Tensor.normal_,
)  # fmt: skip
"""Functions that draw weights."""

EXTRA_BYTES = 1 << 28
"""Memory that a network may use in addition to its weights, for constants such as tables of angles: 256 MiB."""


def build(config: Mapping[str, Any]) -> torch.nn.Module:
    """Build a network from its config, such as {"name": "unet", "in_channels": 1}, with newly drawn weights.

    Raises:
        UserError: the name is unknown, or the arguments are impossible.
    """
    arguments = dict(config)
    name = arguments.pop("name", None)
    network = NETWORKS.find(name, "network name")
    try:
        inspect.signature(network).bind(**arguments)
    except TypeError as error:
        known = ", ".join(inspect.signature(network).parameters)
        raise UserError(f"network {name}: {error}; its arguments are {known}") from None
    for key, value in arguments.items():
        if not isinstance(value, PLAIN) or (isinstance(value, float) and math.isnan(value)):
            raise UserError(f"network {name}: {key}={value!r:.40}: expected plain values, not NaN")
    try:
        return network(**arguments)
    except UserError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:  # raised by torch for sizes that do not fit together
        raise UserError(f"network {name}: {(str(error).splitlines() or ['too large'])[0]}") from None


def build_for(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> torch.nn.Module:
    """Build a network with stored weights. It takes over the tensors and does not copy them.

    The network is built on the meta device, where tensors have a shape and no memory, and compared with the weights
    before it gets memory. A damaged or malicious config therefore costs neither memory nor time.

    Raises:
        UserError: the config describes a larger network than the weights, or one of another architecture.
    """
    too_large = UserError("weights of another architecture: the network is larger than its file")
    depths = [name for name in DEPTHS if name in config]
    require_positive(config, *depths)
    levels = config.get("multipliers")
    # Every block of every level has at least one weight.
    blocks = math.prod(config[name] for name in depths) * (len(levels) if isinstance(levels, Sequence) else 1)
    if blocks > len(weights):
        raise too_large
    if not NETWORKS.find(config.get("name"), "network name").__module__.startswith("bfn.networks."):
        # Networks of other packages run their own code, and may need the values of tensors while they are built.
        network = build(config)
        check_weights(network, weights)
        network.load_state_dict(weights)
        return network
    with torch.device("meta"), _NoInitialisation():
        network = build(config)
    check_weights(network, weights)
    if sum(value.nbytes for value in network.buffers()) > EXTRA_BYTES + sum(v.nbytes for v in weights.values()):
        raise too_large
    own = network.state_dict()
    network.load_state_dict({name: value.to(own[name].dtype) for name, value in weights.items()}, assign=True)
    for module in network.modules():
        if hasattr(module, "reset_constants"):
            module.reset_constants()  # type: ignore[operator]
    return network


class _NoInitialisation(TorchFunctionMode):
    """Skips the random initialisation of weights. On the meta device it would import modules for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def check_weights(network: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError unless the weights have the names and the shapes of the network's own."""
    own, given = ({name: tuple(value.shape) for name, value in w.items()} for w in (network.state_dict(), weights))
    if own != given:
        raise UserError(f"weights of another architecture: {_difference(own, given)}")


def _difference(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Say how the shapes of a network's own weights differ from those of given ones."""
    missing, foreign = [name for name in own if name not in given], [name for name in given if name not in own]
    if missing or foreign:
        parts = [f"no {', '.join(missing[:3])}"] if missing else []
        parts += [f"{', '.join(foreign[:3])}, which the network does not have"] if foreign else []
        return "; ".join(parts)
    name = next(name for name, shape in own.items() if given[name] != shape)
    return f"{name} has shape {given[name]}, the network's has {own[name]}"
