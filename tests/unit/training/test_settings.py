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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stpes=3", "unknown setting 'stpes'; did you mean 'steps'?"),
        ("steps=0", "steps=0: expected at least 1"),
        ("steps=10000000000", "steps=10+: expected a whole number from 1 to 1,000,000,000"),
        ("grad_clip=-1", "grad_clip=-1.0: expected at least 0"),
        ("steps=1.5", "steps=1.5: expected a whole number"),
        ("steps=many", "steps='many': expected a whole number"),
        ("lr=.nan", "lr=nan: expected a number"),
        ("lr=-1", "lr=-1.0: expected a positive learning rate"),
        ("batch=true", "batch=True: expected a whole number"),
        ("compile=1", "compile=1: expected true or false"),
        ("optimiser=sgd", "optimiser='sgd': expected one of adamw, muon"),
        ("precision=int8", "precision='int8': expected one of float32"),
        ("betas=0.9", "betas=0.9: expected 2 numbers"),
        ("ema_decay=1.5", r"ema_decay=1.5: expected a share in \[0, 1\]"),
        ("accumulate=3", "batch=64: not a multiple of accumulate=3"),
        ("network=7", "network=7: expected a name, or a mapping with a 'name'"),
        ("lr.x=7", "lr.x: only data, network, flow, head, weighting have parameters"),
        ("lr", "'lr': expected name=value"),
    ],
)
def test_wrong_settings_are_one_clear_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        Settings.from_dict(TINY).override([change])
    assert "\n" not in str(error.value)


def test_wrong_files_are_one_clear_line(tmp_path):
    for name, text, message in [
        ("a.yaml", "lr: [1", "a.yaml: not YAML"),
        ("b.toml", "lr = ", "b.toml: Invalid value"),
        ("c.json", "{", "c.json: Expecting"),
        ("d.ini", "lr=1", "d.ini: expected a name that ends in .yaml, .toml or .json"),
        ("e.yaml", "just words", "e.yaml: expected settings as 'name: value' lines"),
        ("f.yaml", "lr: 1", "f.yaml: has no 'data': say which to use"),
        ("g.yaml", "a: !!python/object/apply:os.system [true]", "g.yaml: not YAML"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            read_settings(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="no such file"):
        read_settings(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"recipe 'text9': expected one of .*; did you mean 'text8'\?"):
        recipe("text9")
