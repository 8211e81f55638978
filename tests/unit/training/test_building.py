import numpy as np
import pytest
from PIL import Image

from bfn.core.flows import ContinuousFlow
from bfn.core.schedules import QuadraticSchedule
from bfn.kinds.schedules import TabulatedSchedule
from bfn.training.building import build_model, learning_rate, make_optimiser, make_weighting
from bfn.training.source import open_recipe_data as open_source


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


def test_a_model_knows_the_names_and_shares_of_its_classes(settings, tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("circle", 30), ("square", 10)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (4, 4)).astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    source = open_source({"name": str(tmp_path)}, "continuous", "train")
    info = build_model(settings, source).info
    assert info.classes.names == ("circle", "square")
    assert info.classes.shares == pytest.approx((0.75, 0.25), abs=0.05)


@pytest.mark.parametrize(
    ("config", "schedule"),
    [
        ({"name": "quadratic", "beta_1": 9.0}, QuadraticSchedule(9.0)),
        ({"name": "tabulated", "times": [0, 0.5, 1], "betas": [0, 1, 9]}, TabulatedSchedule((0, 0.5, 1), (0, 1, 9))),
    ],
)
def test_a_flow_may_have_any_schedule_that_can_be_stored(settings, config, schedule):
    settings = settings.override({"flow": {"name": "continuous", "schedule": config}})
    source = open_source(settings.data, "continuous", "train")
    assert build_model(settings, source).flow == ContinuousFlow(schedule=schedule)


def test_the_spread_of_the_data_is_measured_where_a_part_asks_for_it(settings):
    source = open_source(settings.data, "continuous", "train")
    model = build_model(settings, source)
    measured = model.head.data_std
    assert measured == pytest.approx(float(source.first(1024)[0].std()), abs=1e-4)
    assert make_weighting(settings, source, model).data_std == measured
    assert make_weighting(settings.override({"weighting.data_std": 0.5}), source, model).data_std == 0.5
