"""``bfn evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from bfn.cli.common import (
    AsJson,
    Device,
    Loaded,
    ModelName,
    Seed,
    check_positive,
    load,
    on_terminal,
    print_json,
    progress_bar,
)

if TYPE_CHECKING:
    from torch import Tensor


def evaluate(
    model: ModelName,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    part: Literal["train", "validation", "test", "all"] = "test",
    n: int = 1000,
    seed: Seed = 0,
    batch: int = 64,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Measure the bits a dimension (a character, for text) of held-out data: bound and reconstruction.

    The continuous-time bound and the reconstruction at t = 1 are unbiased estimates, each with its standard error.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Args:
        data: a standard set or a path, as bfn train takes it; the set that the model was trained on if left out.
        part: which part of it.
        n: how many samples, at most; images are chosen at random, pieces of a text evenly.
        batch: samples that go through the network at a time.
    """
    check_positive(n=n, batch=batch)
    loaded = load(model, device)
    trained_on = (((loaded.config.get("card") or {}).get("settings") or {}).get("data")) or {}
    source = data or _fetched(trained_on.get("name"))
    x, labels = _held_out(loaded, source, part, n, seed, trained_on)
    report = _measure(loaded, x, labels, seed, batch)
    values = {
        "model": model,
        "data": source,
        "part": part,
        "n": len(x),
        "with_labels": labels is not None,
        "seed": seed,
        "unit": "bits per character" if loaded.form == "text" else "bits per dimension",
    }
    if json:
        return print_json({**values, **report})
    conditional = ", each with its class" if labels is not None else ""
    print(f"{model} on {len(x)} samples of {source} ({part}){conditional}, {values['unit']}:")
    for name in ("bound", "reconstruction", "total"):
        print(f"  {name:16}{report[name]['mean']:10.4f} +- {report[name]['standard_error']:.4f}")
    if loaded.model.flow.kind == "continuous":
        print("  (of a density on [-1, 1]; the reconstruction is that of the model's head at t = 1)")
    return None


def _fetched(name: str | None) -> str:
    """The name of a data set that needs no download."""
    from bfn.data import home, names

    if name is None:
        raise ValueError("--data: the model's card does not say what it was trained on; give a standard set or a path")
    if name in names() and name != "digits" and not (home() / "data" / name).is_dir():
        raise ValueError(f"{name} is not in the cache: run bfn data fetch {name}, or give --data")
    return name


def _held_out(
    loaded: Loaded, source: str, part: Literal["train", "validation", "test", "all"], n: int, seed: int,
    trained_on: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Data as the model takes them, and their labels where it knows the classes."""
    import torch

    from bfn.data import Alphabet, Text, load

    flow, shape = loaded.model.flow, loaded.model.data_shape
    alphabet = Alphabet(loaded.alphabet) if loaded.alphabet else None
    held_out = load(source, part, alphabet=alphabet, progress=on_terminal())
    if isinstance(held_out, Text):
        if loaded.form != "text":
            raise ValueError(f"--data {source}: is text, and the model is one of {loaded.form}")
        return held_out.tiles(shape[0], min(n, len(held_out) // shape[0])), None
    if loaded.form != "images" or held_out.data_shape != shape:
        raise ValueError(f"--data {source}: images of shape {held_out.data_shape}, and the model's data are {shape}")
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
    some = held_out[order[:n]]
    labels = some.labels if loaded.n_labels else None
    binary = flow.kind == "discrete" and loaded.levels == 2 and some.levels > 2
    some = some.prepared({"binarise": True, **trained_on} if binary else trained_on)
    return some.to_float() if flow.kind == "continuous" else some.to_classes(), labels


def _measure(loaded: Loaded, x: Tensor, labels: Tensor | None, seed: int, batch: int) -> dict[str, dict[str, float]]:
    """Bound, reconstruction and their sum, each with its standard error."""
    import dataclasses

    import torch

    from bfn.metrics.bits import bits_report

    model = loaded.model
    generator = torch.Generator(model.device).manual_seed(seed)
    bound, reconstruction = [], []
    with torch.no_grad(), progress_bar(len(x), "evaluating", "sample") as bar:
        for first in range(0, len(x), batch):
            some = x[first : first + batch].to(model.device)
            label = None if labels is None else labels[first : first + batch].to(model.device)
            bound.append(model.loss(some, generator=generator, label=label).cpu())
            reconstruction.append(model.reconstruction_loss(some, generator=generator, label=label).cpu())
            bar.update(len(some))
    report = bits_report(torch.cat(bound), torch.cat(reconstruction))
    return {name: dataclasses.asdict(getattr(report, name)) for name in ("bound", "reconstruction", "total")}
