"""Samples in batches are those of the one loop, and come with what it took to draw them."""

import pytest
import torch

import bfn
import tiny
from bfn._utils.pieces import Processes, block_generator
from bfn.core.sampling import sample_in_batches
from bfn.core.solver import plan
from bfn.exact.joint import JointMixture


def test_one_batch_is_a_plain_sample() -> None:
    model = tiny.build("images")
    drawn, plain = sample_in_batches(model, 5, "fast-sde", 3, seed=2), model.sample(5, "fast-sde", 3, seed=2)
    assert torch.equal(drawn.x, plain.x)
    assert torch.equal(drawn.label, plain.label)
    assert (drawn.plan, drawn.calls) == (plan(model, "fast-sde", 3), 3)


def test_each_batch_has_a_generator_of_its_own_from_the_seed_and_its_number() -> None:
    model, calls = tiny.build("images"), []
    drawn = sample_in_batches(model, 5, "fast-sde", 3, batch=2, seed=2, label=[0, 1, 2, 0, 1], on_step=calls.append)
    parts = [
        model.sample(len(k), "fast-sde", 3, label=k, generator=block_generator(2, i)).x
        for i, k in enumerate(([0, 1], [2, 0], [1]))
    ]
    assert torch.equal(drawn.x, torch.cat(parts))
    later = sample_in_batches(model, 3, "fast-sde", 3, batch=2, seed=2, label=[2, 0, 1], first=2)
    assert torch.equal(later.x, drawn.x[2:])
    assert drawn.label.tolist() == [0, 1, 2, 0, 1]
    assert drawn.calls == len(calls) == 9


def test_processes_draw_batches_in_turn_and_all_get_all_in_order(monkeypatch) -> None:
    model = tiny.build("images")
    whole = sample_in_batches(model, 7, "fast-sde", 3, batch=2, seed=2)
    shares: dict[int, list[object]] = {}

    def gather(self: Processes, values: list[object]) -> list[object]:
        shares[self.index] = values
        return [shares[i % 3][i // 3] for i in range(sum(map(len, shares.values())))] if len(shares) == 3 else values

    monkeypatch.setattr(Processes, "gather", gather)
    drawn = [sample_in_batches(model, 7, "fast-sde", 3, batch=2, seed=2, processes=Processes(i, 3)) for i in range(3)]
    assert [len(shares[i]) for i in range(3)] == [2, 1, 1]
    assert torch.equal(drawn[-1].x, whole.x)
    assert torch.equal(drawn[-1].label, whole.label)


def test_known_data_go_with_their_sample_or_with_all() -> None:
    model = tiny.build("text")
    mask = torch.arange(20) < 4
    known = torch.randint(27, (5, 20), generator=torch.Generator().manual_seed(0))
    for given in (known, known[0]):
        x = sample_in_batches(model, 5, nfe=2, batch=2, known=given, known_mask=mask).x
        assert torch.equal(x[:, :4], given.expand(5, 20)[:, :4])


def joint() -> JointMixture:
    numbers, classes = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])
    return JointMixture({"x": (numbers, torch.full((2, 1), 0.2))}, {"kind": classes})


def test_joint_data_are_those_of_the_one_loop_and_what_is_given_is_cut_up_by_part() -> None:
    model, n = joint(), 5
    shape = model.flow.state_shape(model.data_shape)
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(n, *shape, generator=generator, dtype=model.dtype)
    allowed = torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 1, 0]), 3).bool()
    x = torch.linspace(-1, 1, n, dtype=model.dtype).unsqueeze(1)
    mask = torch.tensor([[True], [False], [True], [True], [False]])
    for settings in (
        {"initial": initial},
        {"initial": initial, "allowed": {"kind": allowed.view(n, *model.data_shape["kind"], 3)}},
        {"initial": initial, "allowed": {"kind": allowed[0]}},
        {"initial": initial, "known": {"x": x}, "known_mask": {"x": mask}},
        {"initial": initial, "known": {"x": x[0]}},
    ):
        whole = model.sample(n, "fast-ode", 4, **settings).x
        parts = sample_in_batches(model, n, "fast-ode", 4, batch=2, **settings).x
        for name in ("x", "kind"):
            torch.testing.assert_close(parts[name], whole[name])


def test_a_start_from_data_goes_with_its_sample() -> None:
    model = joint()
    data = {"x": torch.tensor([[-1.0], [1.0], [-1.0]]).to(model.dtype), "kind": torch.tensor([0, 2, 0])}
    x = sample_in_batches(model, 3, "fast-ode", 6, batch=2, grid="uniform", t_start=0.9, start_from=data).x
    assert torch.equal(x["kind"], data["kind"])
    torch.testing.assert_close(x["x"], data["x"], rtol=0, atol=0.3)


def test_wrong_input() -> None:
    with pytest.raises(bfn.UserError, match="batch=0"):
        sample_in_batches(tiny.build("text"), 5, batch=0)
    with pytest.raises(bfn.UserError, match="first=3: expected a multiple of the 2"):
        sample_in_batches(tiny.build("text"), 5, batch=2, first=3)
    with pytest.raises(bfn.UserError, match="one for each of the 5"):
        sample_in_batches(tiny.build("images"), 5, label=[0, 1])
