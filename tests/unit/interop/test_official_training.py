"""The recipes of the published models train, on networks and data of a few kilobytes, and what they give samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn.core.heads import Head
from bfn.core.plain import from_plain
from bfn.interop.official import PUBLISHED, configuration
from bfn.training.building import build_model
from bfn.training.building import open_recipe_data as open_source
from bfn.training.checkpoints import read_log
from bfn.training.fitting import train
from bfn.training.settings import Settings, recipe

CASES = json.loads((Path(__file__).parents[2] / "data" / "official-checkpoints" / "small-cases.json").read_text())
RECIPES = {
    "text8-discrete": ("text8", "bfn-solver2", "text8_discrete"),
    "mnist-discrete": ("mnist", "sde-bfn-solver2", "mnist_discrete"),
    "cifar10-continuous-256": ("cifar10_continuous", "bfn-solver++2", "cifar10_continuous_256bins"),
    "cifar10-continuous-16": ("cifar10_continuous", "sde-bfn-solver++2", "cifar10_continuous_16bins"),
    "cifar10-discretised-256": ("cifar10_discretized", "bfn-solver++2", "cifar10_discretized_256bins"),
    "cifar10-discretised-16": ("cifar10_discretized", "sde-bfn-solver++2", "cifar10_discretized_16bins"),
}


def tiny(name: str, folder: Path) -> Settings:
    """A recipe with the network of a small case, its own kind of data, and two steps."""
    chosen = configuration(CASES[RECIPES[name][0]])
    rng = np.random.default_rng(0)
    if len(chosen.data_shape) == 1:
        path = folder / "text.txt"
        path.write_text("".join(rng.permutation(list(" abcdefghijklmnopqrstuvwxyz" * 20))))
    else:
        path = folder / "images.npz"
        np.savez(path, x=rng.integers(0, 256, (40, *chosen.data_shape)).astype(np.uint8), labels=np.arange(40) % 10)
    counts = {"batch": 4, "steps": 2, "eval_count": 4, "sample_count": 4, "sample_nfe": 3}
    change: dict[str, Any] = {"data.name": str(path), "network": chosen.network, "tensorboard": False, **counts}
    if len(chosen.data_shape) == 1:
        change["data.length"] = chosen.data_shape[0]
    return recipe(name).override(change)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_what_it_gives_samples(name: str, tmp_path: Path) -> None:
    settings, solver = tiny(name, tmp_path), RECIPES[name][1]
    train(settings, tmp_path / "run", progress=False)
    assert all(np.isfinite(line.get("loss", 0.0)) for line in read_log(tmp_path / "run"))
    model = bfn.load(tmp_path / "run")
    assert model.network.config == settings.network
    for one in ("bfn", solver):
        x = model.sample(2, one, nfe=4, generator=torch.Generator().manual_seed(0)).x
        assert x.shape == (2, *model.data_shape)
        if model.flow.kind == "discrete":
            assert 0 <= int(x.min()) <= int(x.max()) < model.flow.n_classes
        else:
            assert float(x.abs().max()) <= 1 + 1e-5
    fresh = build_model(settings, open_source(settings.data, settings.flow["name"], "train"))
    moved = [not torch.equal(*pair) for pair in zip(model.parameters(), fresh.parameters(), strict=True)]
    assert any(moved)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_describes_the_published_model(name: str) -> None:
    settings, chosen = recipe(name), PUBLISHED[RECIPES[name][2]]
    assert settings.network == chosen.network
    assert settings.data == chosen.data
    assert from_plain(Head, settings.head, "head") == chosen.head
    schedule = chosen.flow.schedule
    expected = {"sigma_1": schedule.sigma_1} if chosen.flow.kind == "continuous" else {"beta_1": schedule.beta_1}
    assert settings.flow == {"name": chosen.flow.kind, **expected}
    assert (settings.ema_decay, settings.grad_clip, settings.warmup, settings.final_lr) == (0.9999, 5.0, 0, 1.0)
