"""Samples of different lengths: padding counts nowhere, and never changes what there is."""

import pytest
import torch

import bfn
from bfn.core import losses
from bfn.core.conditions import Lengths, pack_present
from bfn.core.info import ModelInfo

K, LONGEST, LENGTHS = 5, 12, [12, 5, 1, 8]


def text_model(length: int = LONGEST) -> bfn.BFN:
    """A model with weights without zeros, as a trained network has them."""
    network = bfn.networks.Transformer(n_classes=K, width=16, n_blocks=2, n_heads=2, max_length=32).eval()
    generator = torch.Generator().manual_seed(0)
    for p in network.parameters():
        p.data.normal_(generator=generator).mul_(0.3 if p.ndim > 1 else 0.1)
    info = ModelInfo(lengths=Lengths.of(torch.tensor(LENGTHS)))
    return bfn.BFN(network, bfn.DiscreteFlow(K, 2.0), "logits", (length,), info)


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(K, (4, LONGEST), generator=generator)
    present = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    return x, present, torch.randn(4, LONGEST, K, generator=generator)


def alone(value: torch.Tensor, i: int) -> torch.Tensor:
    return value[i : i + 1, : LENGTHS[i]]


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_a_mixed_batch_has_the_losses_of_its_members_alone(t: float) -> None:
    model = text_model()
    x, present, eps = batch()
    times = torch.full((4,), t)
    entropy = bfn.losses.CrossEntropy().values
    together = losses.errors_and_values(model, x, times, entropy, None, {"present": present}, eps)
    for i in range(4):
        own = losses.errors_and_values(model, alone(x, i), times[:1], entropy, None, None, alone(eps, i))
        for all_of, one in zip(together, own, strict=True):
            torch.testing.assert_close(all_of[i : i + 1], one, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_so_do_all_the_losses_and_bounds(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise everywhere there is nothing left to chance."""
    x, present, _ = batch()
    monkeypatch.setattr(torch, "randn", lambda shape, **kw: torch.full(shape, noise, dtype=kw.get("dtype")))

    def values(model: bfn.BFN, x: torch.Tensor, **present: torch.Tensor) -> dict[str, torch.Tensor]:
        t = torch.full((len(x),), 0.4)
        return {
            "loss": model.loss(x, t, **present),
            "n-step": model.loss(x, t, n_steps=5, **present),
            "reconstruction": model.reconstruction_loss(x, **present),
            "likelihood": model.log_likelihood(x, "n-step", 6, **present).log_prob,
        }

    together = values(text_model(), x, present=present)
    for i, length in enumerate(LENGTHS):
        for name, value in values(text_model(length), alone(x, i)).items():
            torch.testing.assert_close(together[name][i : i + 1], value, atol=1e-6, rtol=1e-5, msg=name)


def test_the_ode_s_likelihood_counts_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, alone_of = text_model().double(), {i: text_model(LENGTHS[i]).double() for i in (1, 2)}
    x, present, _ = batch()
    monkeypatch.setattr(torch, "randn", lambda shape, **kw: torch.linspace(-1, 1, K).expand(shape).to(kw.get("dtype")))
    together = model.log_likelihood(x, "ode", 12, present=present, divergence="exact")
    for i, single in alone_of.items():
        own = single.log_likelihood(alone(x, i), "ode", 12, divergence="exact")
        torch.testing.assert_close(together.log_prob[i : i + 1], own.log_prob, atol=1e-6, rtol=0)
    per_character = -float(together.log_prob.mean()) / torch.tensor(2.0).log() / (sum(LENGTHS) / 4)
    assert together.bits.value == pytest.approx(float(per_character))


def test_error_curves_count_no_padding() -> None:
    model, (x, present, _) = text_model(), batch()
    curves = [
        losses.error_curve(model, data, 3, torch.Generator().manual_seed(0), {"present": present}).squared_error
        for data in (x, torch.where(present, x, (x + 1) % K))
    ]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("solver", ["fast-ode", "bfn-solver2", "auto"])
def test_padding_never_changes_a_sample(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, start = batch()
    monkeypatch.setattr(torch, "randn", lambda shape, **kw: torch.full(shape, 0.3, dtype=kw.get("dtype")))
    together = text_model().sample(4, solver, 5, lengths=LENGTHS, initial=start)
    for i, length in enumerate(LENGTHS):
        model = text_model(length)
        model.info.lengths = None
        own = model.sample(1, solver, 5, initial=alone(start, i))
        assert torch.equal(together.x[i, :length], own.x[0])
        assert not together.x[i, length:].any()
        torch.testing.assert_close(together.final[i, :length], own.final[0], atol=1e-5, rtol=1e-4)


def test_lengths_are_drawn_from_the_data_s_own_or_asked_for() -> None:
    model = text_model()
    drawn = model.sample(40, nfe=1, seed=0).present.sum(1)
    assert torch.bincount(drawn).tolist() == [0, 10, 0, 0, 0, 10, 0, 0, 10, 0, 0, 0, 10]
    assert model.sample(3, nfe=1, lengths=7).present.sum(1).tolist() == [7, 7, 7]


def test_what_is_known_is_present() -> None:
    known, mask = torch.zeros(LONGEST, dtype=torch.long), torch.arange(LONGEST) == 10
    present = text_model().sample(3, nfe=1, known=known, known_mask=mask, lengths=2).present
    assert present.nonzero()[:3].tolist() == [[0, 0], [0, 1], [0, 10]]


def test_a_network_that_knows_no_padding_is_shown_nothing_there() -> None:
    seen = []

    def network(theta, t):
        seen.append(theta)
        return theta.log()

    model = bfn.BFN(network, bfn.DiscreteFlow(K), "logits", (LONGEST,))
    x, present, _ = batch()
    model.loss(x, present=present)
    model.sample(4, nfe=3, present=present)
    for theta in seen:
        torch.testing.assert_close(theta[~present], torch.full((int((~present).sum()), K), 1 / K))


def test_parts_of_joint_data_are_padded_together() -> None:
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.1), kind=bfn.DiscreteFlow(3), size=bfn.ContinuousFlow(0.1))
    shapes = {"x": (4, 3), "kind": (4,), "size": ()}

    def network(inputs, t, present=None):
        seen.append(present)
        return inputs

    seen: list = []
    info = ModelInfo(lengths=Lengths.of(torch.tensor([2, 4]), parts=("x", "kind")))
    model = bfn.BFN(network, flow, {"x": "data", "kind": "logits", "size": "data"}, shapes, info)
    out = model.sample(2, nfe=2, lengths=[2, 4], seed=0)
    assert seen[0]["x"].shape == (2, 4, 3)
    assert seen[0]["size"].all()
    assert seen[0]["kind"].tolist() == [[True, True, False, False], [True] * 4]
    assert not out.x["x"][0, 2:].any()
    assert not out.x["kind"][0, 2:].any()
    assert {name: own.shape for name, own in out.present.items()} == {name: own.shape for name, own in out.x.items()}
    assert out.present["kind"].tolist() == [[True, True, False, False], [True] * 4]
    again = model.sample(2, nfe=2, present=out.present, seed=0)
    assert all(torch.equal(own, again.present[name]) for name, own in out.present.items())
    total, parts = (
        loss(out.x, torch.full((2,), 0.5), generator=torch.Generator().manual_seed(0), present=out.present)
        for loss in (model.loss, model.loss_of_parts)
    )
    torch.testing.assert_close(sum(parts.values()), total)


def test_masks_of_fewer_axes_hold_for_all_that_follow() -> None:
    mask = torch.tensor([[True, False]])
    packed = pack_present(bfn.ContinuousFlow(), mask, (2, 3), 1)
    assert packed.tolist() == [[[True] * 3, [False] * 3]]
