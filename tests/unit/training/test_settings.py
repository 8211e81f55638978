import json

import pytest

from bfn.training.settings import Settings, differences, read_settings, recipe, recipes

TINY = {"data": "digits", "network": {"name": "mlp", "width": 8}, "flow": "continuous", "head": "data"}


def test_every_recipe_can_be_read_and_comes_back_from_its_own_values():
    assert set(recipes()) >= {"digits", "mnist", "mnist-binary", "text8"}
    for name in recipes():
        settings = recipe(name)
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("suffix", ["yaml", "toml", "json"])
def test_settings_are_the_same_from_any_kind_of_file(tmp_path, suffix):
    text = {
        "yaml": "data: digits\nflow: {name: continuous, sigma_1: 1e-2}\nhead: data\nlr: 2e-3\nsteps: 30\n"
        "network: {name: mlp, width: 8}\n",
        "toml": 'data = "digits"\nhead = "data"\nlr = 2e-3\nsteps = 30\nnetwork = {name = "mlp", width = 8}\n'
        'flow = {name = "continuous", sigma_1 = 1e-2}\n',
        "json": json.dumps({**TINY, "flow": {"name": "continuous", "sigma_1": 0.01}, "lr": 0.002, "steps": 30}),
    }
    path = tmp_path / f"run.{suffix}"
    path.write_text(text[suffix])
    expected = Settings.from_dict({**TINY, "flow": {"name": "continuous", "sigma_1": 0.01}, "lr": 2e-3, "steps": 30})
    assert read_settings(path) == expected
    assert read_settings(path).flow == {"name": "continuous", "sigma_1": 0.01}


def test_overrides_change_a_setting_or_one_parameter_of_a_part():
    settings = Settings.from_dict(TINY)
    changed = settings.override(["lr=1e-4", "network.width=16", "head=noise", "threads=2"])
    assert (changed.lr, changed.network, changed.head) == (1e-4, {"name": "mlp", "width": 16}, {"name": "noise"})
    assert changed == settings.override({"lr": 1e-4, "network.width": 16, "head": "noise", "threads": 2})
    deep = settings.override(["flow.schedule.name=quadratic", "flow.schedule.beta_1=3"]).flow
    assert deep == {**settings.flow, "schedule": {"name": "quadratic", "beta_1": 3}}
    assert set(differences(settings, changed)) == {"lr", "network", "head", "threads"}
