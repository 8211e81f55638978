import pytest

from bfn.training.batches import open_source
from bfn.training.building import build_model, learning_rate, make_optimiser


def test_the_learning_rate_rises_stays_and_falls(settings):
    settings = settings.override({"steps": 100, "warmup": 10, "decay_from": 0.5, "lr": 0.4, "final_lr": 0.1})
    rates = [learning_rate(settings, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.04)
    assert rates[9:50] == pytest.approx([0.4] * 41)
    assert rates[75] == pytest.approx(0.4 * (0.1 + 0.9 / 2))
    assert rates[100] == pytest.approx(0.04)


def test_biases_and_norms_are_spared_from_weight_decay(settings, images):
    settings = settings.override({"weight_decay": 0.1, "optimiser": "adamw"})
    model = build_model(settings, open_source(settings.data, "continuous", "train"))
    decays = {id(p): group["weight_decay"] for group in make_optimiser(settings, model).param_groups
              for p in group["params"]}  # fmt: skip
    assert len(decays) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.1 if parameter.ndim > 1 else 0.0), name
