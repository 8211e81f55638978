"""Estimate settings: the same noise for all, pooled repeats, and a store that is resumed from."""

import json
import math

import pytest
import torch

import tiny
from bfn import solvers
from bfn._utils.estimate import Estimate
from bfn.core.sampling import BoundRequest
from bfn.exact.numbers import GaussianMixture
from bfn.quality import comparison as measurements
from bfn.quality.comparison import Setting, draw, measure, pool
from bfn.quality.judge import Judge, Measure


class Mean:
    """The mean of the samples, with a count of how often it was asked."""

    measures = (Measure("mean", "mean", "low"),)

    def __init__(self, key: str = "mean") -> None:
        self.key = key
        self.calls = 0

    def problem(self, n: int) -> str | None:
        return "n=1: too few" if n < 2 else None

    def __call__(self, x: torch.Tensor, labels: torch.Tensor | None) -> dict[str, Estimate]:
        self.calls += 1
        value = x.double().abs().mean().item()
        return {"mean": Estimate(value, value - 0.1)}


def judge(key: str = "mean") -> Judge:
    return Judge("mean", (Mean(key),), torch.zeros(10, 2))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model():
    return tiny.build("vectors")


SETTINGS = [Setting("bfn", 3), Setting("bfn-solver++2", 3, t_start=0.01)]


def test_every_setting_starts_from_the_same_noise(model, monkeypatch) -> None:
    draw_rows, starts = BoundRequest.draw, []

    def watched(rows, **settings):
        def keep(step) -> None:
            if step.index == 0:
                starts.append(step.u)

        return draw_rows(rows, **{**settings, "on_step": keep})

    monkeypatch.setattr(BoundRequest, "draw", watched)
    for setting in (*SETTINGS, Setting("auto", 7)):
        draw(model, setting, 10, seed=4, batch=4)
    first, *others = (torch.cat(starts[i : i + 3]) for i in (0, 3, 6))
    assert len(first.unique(dim=0)) == 10
    assert all(torch.equal(first, other) for other in others)


def test_classes_come_in_turn() -> None:
    drawn = draw(tiny.build("images"), Setting("bfn", 2), 7, batch=3)
    assert drawn.label is not None
    assert drawn.label.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert drawn.x.shape == (7, 1, 8, 8)
    assert drawn.x.abs().max() <= 1


def test_what_is_measured_is_not_measured_again_even_after_an_interrupt(model, tmp_path) -> None:
    store, first, second = tmp_path / "store.jsonl", judge(), judge()

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(model, SETTINGS, first, 6, repeats=2, store=store, on_record=stop)
    assert first.parts[0].calls == 2
    again = measure(model, [*SETTINGS, Setting("auto", 3)], second, 6, repeats=2, store=store)
    assert second.parts[0].calls == 4
    assert [r.setting for r in again] == [*SETTINGS, Setting("auto", 3)]
    fresh = measure(model, SETTINGS, judge(), 6, repeats=2)
    assert [record.measures for record in again[:2]] == [record.measures for record in fresh]
    plain = json.loads(json.dumps(again[0].asdict(), allow_nan=False))
    assert plain["seeds"] == [0, 1]
    assert plain["measures"]["mean"]["value"] == fresh[0].measures["mean"].value
    assert plain["each"][0]["mean"]["high"] is None


def test_a_line_that_was_cut_is_measured_again_and_spoils_no_other(model, tmp_path) -> None:
    store = tmp_path / "store.jsonl"
    measure(model, SETTINGS, judge(), 6, store=store)
    whole = store.read_bytes()
    store.write_bytes(whole[:-20])
    for n_measured in (1, 0):
        again = judge()
        measure(model, SETTINGS, again, 6, store=store)
        assert again.parts[0].calls == n_measured
    assert store.read_bytes().startswith(whole[:-20])


def test_all_that_matters_is_in_the_key(model, tmp_path) -> None:
    store = tmp_path / "store.jsonl"
    one = [Setting("bfn", 3)]
    measure(model, one, judge(), 6, store=store)
    other = tiny.build("vectors")
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    clipped = tiny.build("vectors")
    clipped.info.value_range = (-1.0, 1.0)
    changed = [
        (model, one, 7, {}), (model, one, 6, {"seed": 1}), (model, one, 6, {"batch": 5}), (clipped, one, 6, {}),
        (other, one, 6, {}), (model, [Setting("bfn", 4)], 6, {}),
        (model, [Setting("bfn-solver++2", 3, t_start=0.02)], 6, {}),
    ]  # fmt: skip
    for measured, settings, n, options in changed:
        fresh = judge()
        measure(measured, settings, fresh, n, store=store, **options)
        assert fresh.parts[0].calls == 1
    measure(model, one, judge("another reference"), 6, store=store)
    assert len(store.read_text().strip().splitlines()) == 2 + len(changed)
    # On continuous data BFN-Solver1 and BFN-Solver++1 are the same table, which is measured once.
    names = ["bfn-solver1", "bfn-solver++1"]
    both = measure(model, [Setting(name, 3) for name in names], fresh := judge(), 6, store=store)
    assert (fresh.parts[0].calls, [record.setting.name for record in both]) == (1, names)


def test_exact_models_are_measured_and_named_by_the_user(tmp_path) -> None:
    mixture = GaussianMixture(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), stds=torch.tensor([0.1, 0.1]))
    settings = [Setting("fast-ode", 20)]
    (record,) = measure(mixture, settings, judge(), 50, store=tmp_path / "s.jsonl", identity="two clusters")
    assert record.measures["mean"].value == pytest.approx(0.54, abs=0.05)
    again = judge()
    measure(mixture, settings, again, 50, store=tmp_path / "s.jsonl", identity="two clusters")
    assert again.parts[0].calls == 0


def test_repeats_have_student_s_interval_of_known_values() -> None:
    figures = [Estimate(v, v, v) for v in (1.0, 2.0, 3.0)]
    pooled = pool(figures)
    # t(0.975, 2) = 4.3027, standard error 1 / sqrt(3)
    assert pooled.value == 2
    assert pooled.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert pooled.low == 0.0
    assert pool([Estimate(0.5, 0.4, 0.6)]) == Estimate(0.5, 0.4, 0.6)
    # Seeds that agree by chance keep their own intervals.
    assert pool([Estimate(0.0, 0.0, 0.04)] * 4, highest=1.0) == Estimate(0.0, 0.0, pytest.approx(0.02))
    assert pool([Estimate(0.9, 0.8, 1.0), Estimate(1.0, 0.9, 1.0)], highest=1.0).high == 1.0


def test_settings_in_words() -> None:
    setting = Setting("fast-sde", 10, g=2.0)
    assert setting.label == "fast-sde, g 2, 10 calls"
    assert Setting("bfn-solver++2", 5, t_start=0.01).sampler == "bfn-solver++2, eta 0.01"
    assert json.loads(json.dumps(setting.asdict())) == {"solver": "fast-sde", "nfe": 10, "g": 2.0}
    assert Setting(solvers.get("bfn"), 4).name == "bfn"


def test_batches_have_the_seeds_that_they_always_had() -> None:
    # Noise that depends on the seed and the batch's number alone: figures that were published can be drawn again.
    x = draw(tiny.build("vectors"), Setting("bfn", 1), 1, seed=3, batch=1).x
    torch.manual_seed(0)
    assert torch.equal(x, draw(tiny.build("vectors"), Setting("bfn", 1), 1, seed=3, batch=7).x)
    assert measurements._generator(torch.device("cpu"), 3, 2, "noise").initial_seed() == 0x6474F6AC3598282
