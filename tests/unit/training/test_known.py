"""Training with part of the data known, for models that fill in missing data."""

import os
import signal

import pytest
import torch

import bfn
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.joint import JointFlow
from bfn.networks.mlp import MLP
from bfn.training.objective import PartlyKnown, known_in_training


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def model(features=4):
    torch.manual_seed(0)
    return bfn.BFN(MLP(features, n_classes=3, width=16, n_blocks=1), DiscreteFlow(3), "logits", (features,))


def test_a_share_of_the_samples_has_a_share_of_its_variables_known():
    x = torch.zeros(4000, 4, dtype=torch.long)
    mask = known_in_training(model(), x, 0.5, generator())
    # Half of the samples times a uniform share: a quarter of all; 6 standard errors.
    assert float(mask.float().mean()) == pytest.approx(0.25, abs=0.03)
    # Some of the four known: 1 - E[(1 - share)^4] = 0.8 of the half.
    assert float(mask.any(1).float().mean()) == pytest.approx(0.4, abs=0.05)
    assert known_in_training(model(), x, 0.0, generator()) is None


def test_padding_is_never_known():
    x, present = torch.zeros(2, 4, dtype=torch.long), torch.arange(4) < torch.tensor([[1], [4]])
    assert torch.equal(known_in_training(model(), x, lambda x, g: x == 0, generator(), present), present)


def test_a_function_says_what_is_known_of_joint_data():
    flow = JointFlow(x=ContinuousFlow(0.1), kind=DiscreteFlow(3))
    joint = bfn.BFN(torch.nn.Identity(), flow, {"x": "data", "kind": "logits"}, {"x": (2, 3), "kind": (2,)})
    x = joint.as_data({"x": torch.randn(5, 2, 3), "kind": torch.randint(3, (5, 2))})
    first = torch.tensor([True, False]).expand(5, 2)
    mask = known_in_training(joint, x, lambda x, g: {"x": first} if x["kind"].shape == (5, 2) else {}, generator())
    own = joint.flow.split(mask)
    assert torch.equal(own["x"], first[..., None].expand(5, 2, 3))
    assert not bool(own["kind"].any())


@pytest.mark.parametrize("known", [1.5, -0.1, lambda x, g: torch.zeros(2), lambda x, g: {"y": x == 0}])
def test_what_is_no_mask_is_refused(known, refuses):
    refuses("known", known_in_training, model(), torch.zeros(3, 4, dtype=torch.long), known, generator())


def test_what_is_known_costs_nothing_and_is_shown_at_the_data_end():
    shown = []

    def network(theta, t):
        shown.append(theta)
        return theta.log()

    plain = bfn.BFN(network, DiscreteFlow(3), "logits", (4,))
    x, mask = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[True, False, True, False]])
    loss, whole = (
        float(PartlyKnown(plain, x, known).loss(x, torch.tensor([0.3]), generator=generator()))
        for known in (mask, torch.ones_like(mask))
    )
    assert whole == 0 < loss
    assert torch.equal(shown[0][mask].argmax(-1), x[mask])
    assert float(shown[0][mask].amax(-1).min()) > 1 - 1e-6


def test_a_model_trained_so_fills_in():
    """Two variables that are always the same: given one, the other is drawn right, and by chance in a third."""
    x = torch.randint(3, (512, 1), generator=generator()).expand(512, 2).contiguous()
    trained = bfn.fit(model(2), x, 300, known=0.5, lr=5e-3, ema=0.99, progress=False)
    out = trained.sample(200, nfe=5, known=x[:200], known_mask=torch.tensor([True, False]), seed=0)
    assert float((out.x[:, 1] == x[:200, 0]).float().mean()) > 0.85
    assert trained.info.error_curve.squared_error[0] > 0.3  # that of the whole data, not of what is known of them


def test_a_fit_that_was_interrupted_keeps_its_weights_and_goes_on_to_the_same_ones(tmp_path, refuses, capsys):
    x = torch.randint(3, (64, 4), generator=generator())
    settings = {"batch": 16, "known": 0.5}
    whole = bfn.fit(model(), x, 40, run=tmp_path / "whole", progress=False, **settings)

    class Stopping(torch.utils.data.Dataset):
        taken = 0

        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            Stopping.taken += 1
            if Stopping.taken == 64 + 256 + 160:  # what fit looks at first, then ten batches
                os.kill(os.getpid(), signal.SIGINT)
            return x[i]

    part = bfn.fit(model(), Stopping(), 40, run=tmp_path / "part", **settings)
    assert f"stopped at step {part.info.card['steps']} of 40" in "".join(capsys.readouterr())
    assert 0 < part.info.card["steps"] < 40
    assert any(not torch.equal(new, old) for new, old in zip(part.parameters(), model().parameters(), strict=True))
    resumed = bfn.fit(model(), Stopping(), 40, run=tmp_path / "part", progress=False, **settings)
    assert resumed.info.card["steps"] == 40
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))
    refuses("batch=32", bfn.fit, model(), x, 40, run=tmp_path / "whole", batch=32, progress=False)
