"""Weights and optimiser states whole, on one process or in shards on many (FSDP 2): the same files either way."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from bfn.errors import UserError

__all__ = ["is_sharded", "load_optimiser", "load_weights", "shard", "whole_optimiser", "whole_weights"]

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether weights live in shards; refuses what cannot be averaged while it does."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return False
    if not accelerator.is_fsdp2:
        raise UserError("FSDP version 1: its flat parameters cannot be averaged; launch with --fsdp_version 2")
    return True


def shard(module: nn.Module) -> None:
    """Cut a module's weights over all processes, as FSDP 2 does those that are trained."""
    from torch.distributed.fsdp import fully_shard

    # Also after the outermost forward pass, which nothing follows here that would cut them up again.
    fully_shard(module, reshard_after_forward=True)


def whole_weights(module: nn.Module, sharded: bool) -> dict[str, Tensor]:
    """All weights; of shards, on the first process only. Every process takes part."""
    weights: dict[str, Any] = get_model_state_dict(module, options=WHOLE) if sharded else module.state_dict()
    return weights


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], sharded: bool) -> None:
    """Take over weights that every process has whole."""
    if sharded:
        set_model_state_dict(module, dict(weights), options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(dict(weights))


def whole_optimiser(module: nn.Module, optimiser: torch.optim.Optimizer, sharded: bool) -> dict[str, Any]:
    """The optimiser's state, like :func:`whole_weights`."""
    return get_optimizer_state_dict(module, optimiser, options=WHOLE) if sharded else optimiser.state_dict()


def load_optimiser(
    module: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, Any], sharded: bool
) -> None:
    """Take over an optimiser's state that every process has whole."""
    if sharded:
        set_optimizer_state_dict(module, optimiser, dict(state), options=StateDictOptions(full_state_dict=True))
    else:
        optimiser.load_state_dict(dict(state))
