"""Loading the published checkpoints of the original BFN paper.

The authors published six files of EMA weights: plain state dicts whose keys start with ``net.``. A file is read without
running any code in it, checked key by key against the network it should fit, and put into a `BFN`.
"""

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from bfn import networks
from bfn.errors import UserError
from bfn.interop.official_settings import PUBLISHED, Configuration, configuration
from bfn.model import BFN
from bfn.networks import OfficialBinaryUNet, OfficialFlatUNet

__all__ = ["CheckpointMismatchError", "convert", "load_official", "read_state_dict"]

NAMED_AT_MOST = 8
"""How many keys of a kind an error message names; the exception itself holds them all."""
KINDS = ("missing", "unexpected", "misshapen")


@dataclass(frozen=True)
class _Names:
    """How the original names what we name: part by part of a dotted key.

    kernel_dims: attention projections were convolutions with kernels of size 1 in this many dimensions.
    block: what stands between the index of a down or up block and its weights.
    """

    parts: Mapping[str, str]
    kernel_dims: int = 0
    block: str = ""

    def key(self, ours: str) -> str:
        """The original key of one of our keys."""
        parts = ours.split(".")
        renamed = [self.parts.get(part, part) for part in parts]
        if self.block and parts[0] in ("down", "up"):
            renamed.insert(2, self.block)
        return ".".join(renamed)

    def shape(self, ours: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that the original gives to one of our weights."""
        projection = ours.endswith(("qkv.weight", ".out.weight"))
        return (*shape, *(1,) * (self.kernel_dims if projection else 0))


_IGNORED = "input_adapter.pos_feats"
"""A buffer of the image networks that no published configuration uses."""

_NAMES: Mapping[str, _Names] = {
    "official-transformer": _Names(
        {
            "theta_in": "input_adapter.inp_embedding",
            "time_in": "input_adapter.t_embedding",
            "position": "input_adapter.pos_embedding",
            "blocks": "transformer.h",
            "attention_norm": "ln_1",
            "qkv": "attn.c_attn",
            "attention_out": "attn.c_proj",
            "mlp_norm": "ln_2",
            "mlp_in": "mlp.c_fc",
            "mlp_out": "mlp.c_proj",
            "norm": "transformer.ln_f",
            "logits_out": "lm_head",
        }
    ),
    "official-flat-unet": _Names(
        {
            "time_1": "embed_conditioning.0",
            "time_2": "embed_conditioning.2",
            "down": "down_blocks",
            "middle_1": "mid_resnet_block_1",
            "middle_attention": "mid_attn_block",
            "middle_2": "mid_resnet_block_2",
            "up": "up_blocks",
            "norm_1": "net1.0",
            "conv_1": "net1.2",
            "time": "cond_proj",
            "norm_2": "net2.0",
            "conv_2": "net2.3",
            "skip": "skip_conv",
            "norm": "layers.0",
            "qkv": "layers.1",
            "out": "layers.3",
            "norm_out": "conv_out.0",
            "conv_out": "conv_out.2",
            "pixel_out": "output_adapter.output_projection",
        },
        kernel_dims=2,
        block="resnet_block",
    ),
    "official-binary-unet": _Names(
        {
            "pixel_in": "input_projection",
            "time_1": "time_embed.0",
            "time_2": "time_embed.2",
            "down": "input_blocks",
            "middle": "middle_block",
            "up": "output_blocks",
            "norm_1": "in_layers.0",
            "conv_1": "in_layers.2",
            "time": "emb_layers.1",
            "norm_2": "out_layers.0",
            "conv_2": "out_layers.3",
            "skip": "skip_connection",
            "out": "proj_out",
            "shrink": "op",
            "enlarge": "conv",
            "norm_out": "out.0",
            "conv_out": "out.2",
            "pixel_out": "output_adapter.output_projection",
        },
        kernel_dims=1,
    ),
}


class CheckpointMismatchError(UserError):
    """A checkpoint whose keys are not those of the configuration; holds them all, by their names in the file."""

    def __init__(self, source: str, wrong: Mapping[str, Sequence[str]], hint: str) -> None:
        self.missing, self.unexpected, self.misshapen = (tuple(wrong[kind]) for kind in KINDS)
        found = "; ".join(f"{len(keys)} {kind}: {_some(keys)}" for kind, keys in wrong.items() if keys)
        super().__init__(f"{source} does not fit: {found}; {hint}")


def _some(keys: Sequence[str]) -> str:
    rest = len(keys) - NAMED_AT_MOST
    return ", ".join(keys[:NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def load_official(path: str | Path, settings: str | Mapping[str, Any]) -> BFN:
    """A model, in evaluation mode, from a published file or from the EMA file of a training run of the original code.

    path: a state dict as `torch.save` wrote it; keys may start with ``net.``. No code in it is ever run.
    settings: a name in `PUBLISHED`, or the ``model`` part of an original settings file as a dict.

    The 16-bin and 256-bin files of a kind have the same keys and shapes: only the name can tell them apart.
    """
    chosen = configuration(settings)
    state = read_state_dict(path)
    network, ours, wrong = _match(chosen, state)
    if any(wrong.values()):
        fitting = [name for name, published in PUBLISHED.items() if not any(_match(published, state)[2].values())]
        hint = f"its keys are those of {' or '.join(fitting)}" if fitting else "its keys fit no published configuration"
        name = settings if isinstance(settings, str) else "the given settings"
        raise CheckpointMismatchError(f"{path} as {name}", wrong, hint)
    network.load_state_dict(ours, assign=True)
    if isinstance(network, OfficialFlatUNet | OfficialBinaryUNet):
        network.prepare()
    info = chosen.info(f"the original BFN paper's weights, from {Path(path).name}")
    return BFN(network, chosen.flow, chosen.head, chosen.data_shape, info).eval()


def convert(path: str | Path, settings: str | Mapping[str, Any], out_dir: str | Path) -> BFN:
    """Load a published file and save it in this library's own format; nothing is written unless all of it fits."""
    model = load_official(path, settings)
    model.save(out_dir)
    return model


def _match(
    chosen: Configuration, state: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, Tensor], dict[str, list[str]]]:
    """The network without memory, our state dict, and the keys that do not fit by KINDS and their original names."""
    with torch.device("meta"):
        network = networks.build(chosen.network)
    names = _NAMES[str(chosen.network["name"])]
    prefix = "net." if all(key.startswith("net.") for key in state) else ""
    left = dict(state)
    ours: dict[str, Tensor] = {}
    missing: list[str] = []
    misshapen: list[str] = []
    for key, own in network.state_dict().items():
        official = prefix + names.key(key)
        value, expected = left.pop(official, None), names.shape(key, own.shape)
        if value is None:
            missing.append(official)
        elif tuple(value.shape) != expected:
            misshapen.append(f"{official} {tuple(value.shape)} instead of {expected}")
        elif not value.is_floating_point():
            misshapen.append(f"{official} of {value.dtype} instead of torch.float32")
        else:
            ours[key] = value.reshape(own.shape).to(torch.float32).contiguous()
    if isinstance(network, OfficialFlatUNet | OfficialBinaryUNet):
        left.pop(prefix + _IGNORED, None)
    return network, ours, dict(zip(KINDS, (missing, list(left), misshapen), strict=True))


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """A plain state dict from a file that `torch.save` wrote; refuses files that need code to be read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the path of a published checkpoint such as text8_ema.pt")
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if is_archive and not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise UserError(f"{path}: cut off at byte {size}, its table of contents is missing; fetch it again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is None:
            raise UserError(f"{path}: no PyTorch state dict, its bytes do not unpickle to plain tensors") from error
        needs = f"needs the code {code[1]} to be unpickled, which is not run; save its state_dict() alone"
        raise UserError(f"{path}: {needs}") from error
    except Exception as error:
        # torch.load lets through whatever damaged bytes lead to: RuntimeError, KeyError, EOFError, OSError, ...
        key = _damaged_key(path) if is_archive else None
        where = f"the data of {key} are incomplete" if key else f"{path.stat().st_size} bytes, no complete state dict"
        detail = re.split(r"\. |\n", str(error))[0][:120] if isinstance(error, RuntimeError) else type(error).__name__
        raise UserError(f"{path}: {where} ({detail}); fetch it again") from error
    if not isinstance(state, Mapping):
        raise UserError(f"{path}: holds a {type(state).__name__}; expected a state dict, names and tensors")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: {key!r} holds a {type(value).__name__}; expected a state dict, names and tensors")
    return dict(state)


def _damaged_key(path: Path) -> str | None:
    """The first key whose record in the archive is missing or has the wrong size; None if that cannot be told."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {record.filename.partition("/data/")[2]: record.file_size for record in archive.infolist()}
        shapes = torch.load(path, map_location="meta", weights_only=True)
        numbers: dict[int, int] = {}
        for key, value in shapes.items():
            storage = value.untyped_storage()
            # Records are numbered in the order in which their storages are first met.
            number = numbers.setdefault(storage._cdata, len(numbers))
            if sizes.get(str(number)) != storage.nbytes():
                return str(key)
    except Exception:
        # The error that asked for this diagnosis is the one to report.
        return None
    return None
