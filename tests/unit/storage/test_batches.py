"""Samples in batches: each batch has a generator of its own, and processes share the batches."""

import pytest
import torch

import tiny
from bfn._utils.pieces import Processes, block_generator
from bfn.core.sampling import Request
from bfn.exact.joint import JointMixture
from bfn.storage.sample_files import draw_batches


def bound(model, n, *words, **options):
    return Request.from_options(*words, **options).bind(model, n)


def test_each_batch_has_a_generator_made_from_the_seed_and_its_number() -> None:
    model, calls = tiny.build("images"), []
    request = bound(model, 5, "fast-sde", 3, label=[0, 1, 2, 0, 1])
    drawn = draw_batches(request, batch=2, seed=2, on_step=calls.append)
    parts = [
        model.sample(len(k), "fast-sde", 3, label=k, generator=block_generator(2, i)).x
        for i, k in enumerate(([0, 1], [2, 0], [1]))
    ]
    assert torch.equal(drawn.x, torch.cat(parts))
    assert torch.equal(drawn.x, model.sample(5, "fast-sde", 3, label=[0, 1, 2, 0, 1], batch=2, seed=2).x)
    assert torch.equal(draw_batches(request, range(2, 5), batch=2, seed=2).x, drawn.x[2:])
    assert drawn.label.tolist() == [0, 1, 2, 0, 1]
    assert len(calls) == 9


def test_processes_share_the_batches_and_all_get_all_samples(monkeypatch) -> None:
    request = bound(tiny.build("images"), 7, "fast-sde", 3)
    whole = draw_batches(request, batch=2, seed=2)
    shares: dict[int, list[object]] = {}

    def gather(self: Processes, values: list[object]) -> list[object]:
        shares[self.index] = values
        return [shares[i % 3][i // 3] for i in range(sum(map(len, shares.values())))] if len(shares) == 3 else values

    monkeypatch.setattr(Processes, "gather", gather)
    drawn = [draw_batches(request, batch=2, seed=2, processes=Processes(i, 3)) for i in range(3)]
    assert [len(shares[i]) for i in range(3)] == [2, 1, 1]
    assert torch.equal(drawn[-1].x, whole.x)
    assert torch.equal(drawn[-1].label, whole.label)


@pytest.mark.parametrize("shared", [False, True])
def test_known_data_are_of_each_sample_or_of_all(shared) -> None:
    model, mask = tiny.build("text"), torch.arange(20) < 4
    known = torch.randint(27, (5, 20), generator=torch.Generator().manual_seed(0))
    known = known[0] if shared else known
    x = draw_batches(bound(model, 5, nfe=2, known=known, known_mask=mask), batch=2).x
    assert torch.equal(x[:, :4], known.expand(5, 20)[:, :4])


def joint() -> JointMixture:
    numbers, classes = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])
    return JointMixture({"x": (numbers, torch.full((2, 1), 0.2))}, {"kind": classes})


ALLOWED = torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 1, 0]), 3).bool()
X = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(1)
MASK = torch.tensor([[True], [False], [True], [True], [False]])


@pytest.mark.parametrize(
    "options",
    [{}, {"allowed": {"kind": ALLOWED}}, {"known": {"x": X}, "known_mask": {"x": MASK}}, {"known": {"x": X[0]}}],
)
def test_options_of_joint_data_are_cut_by_part(options) -> None:
    model, n = joint(), 5
    shape = model.flow.state_shape(model.data_shape)
    initial = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0), dtype=model.dtype)
    whole = model.sample(n, "fast-ode", 4, initial=initial, **options).x
    parts = draw_batches(bound(model, n, "fast-ode", 4, initial=initial, **options), batch=2).x
    for name in ("x", "kind"):
        torch.testing.assert_close(parts[name], whole[name])


def test_data_to_start_from_are_of_each_sample() -> None:
    model = joint()
    data = {"x": torch.tensor([[-1.0], [1.0], [-1.0]]).to(model.dtype), "kind": torch.tensor([0, 2, 0])}
    request = bound(model, 3, "fast-ode", 6, grid="uniform", t_start=0.9, start_from=data)
    x = draw_batches(request, batch=2).x
    assert torch.equal(x["kind"], data["kind"])
    torch.testing.assert_close(x["x"], data["x"], rtol=0, atol=0.3)
