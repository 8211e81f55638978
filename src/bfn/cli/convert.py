"""``bfn convert``."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli.common import FILE, NAME, AsJson, tell
from bfn.errors import UserError

__all__ = ["convert"]


def convert(
    file: Annotated[Positional[Path], FILE],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    config: Annotated[str, NAME],
    json: AsJson = False,
) -> None:
    """Turn a published checkpoint of the original BFN paper into a model of this library.

    Example: bfn convert text8_ema.pt --config text8_discrete text8-published

    Args:
        file: a state dict as published, such as text8_ema.pt; no code in it is ever run.
        out: directory for the model.
        config: text8_discrete, mnist_discrete, cifar10_continuous_16bins, cifar10_continuous_256bins,
            cifar10_discretized_16bins or cifar10_discretized_256bins; or a .json file with the model part of settings.
    """
    from bfn import interop

    model = interop.convert(file, _read(config) if config.endswith(".json") else config, out)
    n_parameters = sum(weight.numel() for weight in model.parameters())
    values = {"file": str(file), "config": config, "out": str(out), "n_parameters": n_parameters}
    line = f"{file} as {config}: {n_parameters:,} parameters, written to {out}; try bfn sample {out}"
    tell(values, [line], json)


def _read(config: str) -> dict[str, Any]:
    try:
        settings = json_format.loads(Path(config).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config}: not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{config}: holds a {type(settings).__name__}; expected an object of settings")
    return settings
