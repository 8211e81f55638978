"""``bfn train``."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli.common import DIRECTORY, FILE, NAME, SEED, on_terminal
from bfn.errors import UserError

__all__ = ["train"]

STOPPED = {"SIGINT": 130, "SIGTERM": 143}


def train(
    changes: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME=VALUE ...]")] = (),
    recipe: Annotated[str | None, NAME] = None,
    config: Annotated[Path | None, FILE] = None,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    out: Annotated[Path | None, DIRECTORY] = None,
    seed: Annotated[int | None, SEED] = None,
    resume: bool = False,
    cpu: bool = False,
) -> int:
    """Train a model; it can be stopped at any moment and goes on with --resume.

    Example: bfn train --recipe digits --out runs/digits

    Example: bfn train --recipe mnist --data photos/ --out runs/photos steps=20000 network.channels=64

    Example: bfn train --out runs/photos --resume

    On several GPUs: accelerate launch -m bfn train --recipe cifar10-continuous-256 --out runs/cifar10

    Args:
        changes: settings to change, such as lr=1e-3 batch=128 network.channels=64.
        recipe: settings that come with the package, by name; a wrong name lists them.
        config: settings from a .yaml, .toml or .json file.
        data: a standard set, an image folder, a .npz, .npy or idx file, or a text file, instead of the settings' own.
        out: directory of the run; runs/ and the recipe's or file's name if left out.
        seed: of all that is drawn at random, instead of the settings' own.
        resume: go on from the run's newest whole checkpoint, with the run's own settings if none are given.
        cpu: leave GPUs alone.
    """
    if recipe is not None and config is not None:
        raise UserError("--recipe and --config: give one of them")
    name = recipe or (config.stem if config else None)
    if out is None and name is None:
        raise UserError("--recipe NAME or --config FILE: say what to train, or which run to resume with --out")
    run = out or Path("runs") / str(name)
    own = run / "settings.json"
    if name is None and not (resume and own.is_file()):
        raise UserError(f"--recipe NAME or --config FILE: say what to train; there is no run to resume in {run}")

    from bfn import training

    settings = training.recipe(recipe) if recipe is not None else training.read_settings(config or own)
    given: dict[str, Any] = {"data.name": data, "seed": seed}
    settings = settings.override({key: value for key, value in given.items() if value is not None}).override(changes)
    result = training.train(settings, run, resume=resume, progress=on_terminal(), cpu=cpu)
    return STOPPED.get(result.stopped_by or "", 0)
