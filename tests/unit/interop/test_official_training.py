"""The recipes of the published models train, on networks and data of a few kilobytes, and what they give samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn.interop.official import configuration
from bfn.training.building import build_model
from bfn.training.building import open_recipe_data as open_source
from bfn.training.checkpoints import read_log
from bfn.training.fitting import train
from bfn.training.settings import Settings, recipe

CASES = json.loads((Path(__file__).parents[2] / "data" / "official-checkpoints" / "small-cases.json").read_text())
RECIPES = {
    "text8-discrete": ("text8", "bfn-solver2"),
    "mnist-discrete": ("mnist", "sde-bfn-solver2"),
    "cifar10-continuous-256": ("cifar10_continuous", "bfn-solver++2"),
    "cifar10-continuous-16": ("cifar10_continuous", "sde-bfn-solver++2"),
    "cifar10-discretised-256": ("cifar10_discretized", "bfn-solver++2"),
    "cifar10-discretised-16": ("cifar10_discretized", "sde-bfn-solver++2"),
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


@pytest.mark.parametrize(("name", "solver"), [(name, solver) for name, (_, solver) in RECIPES.items()])
def test_a_recipe_trains_and_what_it_gives_samples(name: str, solver: str, tmp_path: Path) -> None:
    settings = tiny(name, tmp_path)
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


@pytest.mark.parametrize("name", ["mnist-discrete", "cifar10-discretised-16"])
def test_a_recipe_that_was_stopped_ends_with_the_same_weights(name: str, tmp_path: Path) -> None:
    settings = tiny(name, tmp_path).override({"steps": 4, "network.dropout": 0.5})
    train(settings, tmp_path / "whole", progress=False)
    for steps in (2, 4):
        train(settings.override({"steps": steps}), tmp_path / "parts", resume=True, progress=False)
    whole, parts = (bfn.load(tmp_path / run).network.state_dict() for run in ("whole", "parts"))
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []


def test_labels_for_a_network_without_labels_are_refused(tmp_path: Path) -> None:
    settings = tiny("cifar10-continuous-256", tmp_path).override({"data.labels": True})
    with pytest.raises(bfn.UserError) as error:
        train(settings, tmp_path / "run", progress=False)
    assert "network official-flat-unet: takes no labels" in str(error.value)
    assert "set data.labels=false" in str(error.value)
