"""Conditions of any form: drawn together from the data's own, dropped each by its share, guided alone or together."""

import math

import pytest
import torch
from torch import nn

import bfn
from bfn.controls.guidance import Guidance
from bfn.core.conditions import Classes, Condition, conditions_for, dropped
from bfn.core.info import ModelInfo


class Linear(nn.Module):
    """x_hat = mu + 3 gap + 5 size + label, each 0 where it is null."""

    def forward(self, inputs, t, label=None, gap=None, size=None):
        label = 0 if label is None else label.clamp(min=0).view(-1, 1)
        gap, size = (0 if given is None else given.nan_to_num().view(len(t), -1) for given in (gap, size))
        return inputs + label + 3 * gap + 5 * size


def model(info: ModelInfo | None = None) -> bfn.BFN:
    return bfn.BFN(Linear(), bfn.ContinuousFlow(0.1), "data", (2,), info)


def info(**more: object) -> ModelInfo:
    rows = torch.linspace(0, 1, 50)
    conditions = {"gap": Condition.of(rows), "size": Condition.of(torch.stack([rows, 2 * rows], 1))}
    return ModelInfo(conditions=conditions, **more)


def test_what_is_not_asked_for_is_drawn_together_from_the_data() -> None:
    drawn = conditions_for(model(info()), 200, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn["size"], torch.stack([drawn["gap"], 2 * drawn["gap"]], 1))
    # In proportion: of 200 samples each of the 50 values is drawn 4 times, up to less than one.
    counts = torch.bincount((drawn["gap"] * 49).round().long(), minlength=50)
    assert set(counts.tolist()) <= {3, 4, 5}
    assert not torch.equal(drawn["gap"], drawn["gap"].sort().values)


def test_what_is_asked_for_leaves_the_rest_out() -> None:
    known = info(classes=Classes.equal(3))
    given = conditions_for(model(known), 4, condition={"gap": 0.25})
    assert given["gap"].tolist() == [0.25] * 4
    assert given["label"].tolist() == [-1] * 4
    assert given["size"].isnan().all()
    assert conditions_for(model(known), 2, label=[0, "2"])["label"].tolist() == [0, 2]
    assert conditions_for(model(known), 2, condition={"label": 1})["label"].tolist() == [1, 1]
    nothing = conditions_for(model(known), 3, draw=False)
    assert nothing["gap"].isnan().all()
    assert nothing["label"].tolist() == [-1] * 3
    # A condition that was never dropped in training is drawn beside others.
    rows = torch.linspace(0, 1, 10)
    known = ModelInfo(conditions={"gap": Condition.of(rows), "pose": Condition.of(rows, optional=False)})
    assert conditions_for(model(known), 5, condition={"gap": 0.5})["pose"].isfinite().all()


def test_samples_follow_and_remember_their_conditions() -> None:
    out = model().sample(3, "bfn-solver++1", 1, condition={"gap": torch.tensor([0.0, 1.0, 2.0])}, seed=0, t_start=1e-3)
    plain = model().sample(3, "bfn-solver++1", 1, seed=0, t_start=1e-3)
    torch.testing.assert_close(out.x - plain.x, torch.tensor([[0.0], [3.0], [6.0]]).expand(3, 2), atol=1e-5, rtol=0)
    assert out.conditions["gap"].tolist() == [0, 1, 2]
    drawn = model(info()).sample(8, nfe=2, seed=1)
    assert set(drawn.conditions) == {"gap", "size"}


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        # p_0 = label; gap alone adds 3, size then adds 5.
        ({"size": 3.0, "gap": 2.0}, 1 + 2 * 3 + 3 * 5),
        ({"gap": 2.0}, 1 + 2 * 3 + 5),
        ({"gap": 2.0, "size": 2.0}, 1 + 2 * (3 + 5)),
        ({"gap": 0.0}, 1 + 5),
        (2.0, 2 * (1 + 3 + 5)),
        (1.0, 1 + 3 + 5),
        ({"label": 4.0, "gap": 1.0}, 4 + 3 + 5),
    ],
)
def test_guidance_has_a_scale_for_each_condition(scale: object, expected: float) -> None:
    own = model()
    u = torch.zeros(4, 2)
    level = own.flow.noise_level(0.5, 4, 1, u)
    conditions = {"label": torch.ones(4, dtype=torch.long), "gap": torch.ones(4), "size": torch.ones(4, 2)}
    got = Guidance(scale, rescale=0).predict(own.output, None)(u, level, **conditions).mean
    torch.testing.assert_close(got, torch.full((4, 2), float(expected)))


def test_guidance_calls_the_network_once_for_each_scale_and_once_more() -> None:
    sizes: list[int] = []

    def network(inputs, t, label=None, gap=None):
        sizes.append(len(inputs))
        return inputs

    own = bfn.BFN(network, bfn.ContinuousFlow(0.1), "data", (2,))
    for guidance in ({"gap": 2, "label": 3}, 2, {"gap": 1}):
        own.sample(5, nfe=1, condition={"gap": 1.0, "label": 0}, guidance=guidance)
    assert sizes == [15, 10, 5]


def test_conditions_are_dropped_each_by_its_own_share() -> None:
    n, shares = 20_000, {"label": 0.1, "gap": 0.5}
    conditions = {"label": torch.ones(n, dtype=torch.long), "gap": torch.ones(n, 3), "present": torch.ones(n).bool()}
    draws = torch.rand(n, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = dropped(conditions, shares, draws)
    lost = {"label": found["label"] == -1, "gap": found["gap"].isnan().all(1)}
    assert torch.equal(lost["gap"], found["gap"].isnan().any(1))
    assert bool(found["present"].all())
    for name, share in shares.items():
        # Six standard deviations: a false alarm in 5e8.
        assert abs(float(lost[name].double().mean()) - share) < 6 * math.sqrt(share * (1 - share) / n)
    both = float((lost["label"] & lost["gap"]).double().mean())
    assert abs(both - 0.05) < 6 * math.sqrt(0.05 * 0.95 / n)


def test_the_facts_survive_save_and_load(tmp_path) -> None:
    network = bfn.networks.MLP(2, width=8, n_blocks=1, conditions={"gap": {"shape": []}})
    kinds = Condition.of(torch.tensor([0, 1, 1]), names=("ring", "chain"))
    facts = ModelInfo(conditions={"gap": info().conditions["gap"], "kind": kinds})
    bfn.BFN(network, bfn.ContinuousFlow(0.1), "data", (2,), facts).save(tmp_path)
    assert bfn.load(tmp_path).info == facts
