"""The recipes of the published models describe the models that the published weights fit."""

import pytest

from bfn.core.heads import Head
from bfn.core.plain import from_plain
from bfn.interop.official import PUBLISHED
from bfn.training.settings import recipe

RECIPES = {
    "text8-discrete": "text8_discrete",
    "mnist-discrete": "mnist_discrete",
    "cifar10-continuous-16": "cifar10_continuous_16bins",
    "cifar10-continuous-256": "cifar10_continuous_256bins",
    "cifar10-discretised-16": "cifar10_discretized_16bins",
    "cifar10-discretised-256": "cifar10_discretized_256bins",
}


@pytest.mark.parametrize(("name", "published"), RECIPES.items())
def test_a_recipe_trains_the_published_model(name: str, published: str) -> None:
    settings, chosen = recipe(name), PUBLISHED[published]
    assert settings.network == chosen.network
    assert settings.data == chosen.data
    assert from_plain(Head, settings.head, "head") == chosen.head
    schedule = chosen.flow.schedule
    expected = {"sigma_1": schedule.sigma_1} if chosen.flow.kind == "continuous" else {"beta_1": schedule.beta_1}
    assert settings.flow == {"name": chosen.flow.kind, **expected}
    assert (settings.ema_decay, settings.grad_clip, settings.warmup, settings.final_lr) == (0.9999, 5.0, 0, 1.0)
