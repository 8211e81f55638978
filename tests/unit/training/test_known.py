"""Training with part of the data known, for models that fill in missing data."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

import bfn
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.joint import JointFlow
from bfn.networks.mlp import MLP
from bfn.training.objective import PartlyKnown, known_in_training


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(features: int = 4, n_classes: int = 3) -> bfn.BFN:
    torch.manual_seed(0)
    return bfn.BFN(
        MLP(features, n_classes=n_classes, width=16, n_blocks=1), DiscreteFlow(n_classes), "logits", (features,)
    )


def test_a_share_of_the_samples_has_a_share_of_its_variables_known() -> None:
    x = torch.zeros(4000, 4, dtype=torch.long)
    mask = known_in_training(model(), x, 0.5, generator())
    assert mask is not None
    # Half of the samples times a uniform share: a quarter of all; 6 standard errors.
    assert float(mask.float().mean()) == pytest.approx(0.25, abs=0.03)
    # Some of the four known: 1 - E[(1 - share)^4] = 0.8 of the half.
    assert float(mask.any(1).float().mean()) == pytest.approx(0.4, abs=0.05)
    assert known_in_training(model(), x, 0.0, generator()) is None


def test_padding_is_never_known() -> None:
    present = torch.arange(4) < torch.tensor([[1], [4]])
    mask = known_in_training(
        model(), torch.zeros(2, 4, dtype=torch.long), lambda x, g: present | True, generator(), present
    )
    assert torch.equal(mask, present)


def test_a_function_says_what_is_known_of_joint_data() -> None:
    flow = JointFlow(x=ContinuousFlow(0.1), kind=DiscreteFlow(3))
    joint = bfn.BFN(torch.nn.Identity(), flow, {"x": "data", "kind": "logits"}, {"x": (2, 3), "kind": (2,)})
    x = joint.as_data({"x": torch.randn(5, 2, 3), "kind": torch.randint(3, (5, 2))})
    first = torch.tensor([True, False]).expand(5, 2)
    mask = known_in_training(joint, x, lambda x, g: {"x": first} if x["kind"].shape == (5, 2) else {}, generator())
    own = joint.flow.split(mask)
    assert bool(own["x"][:, 0].all())
    assert not bool(own["x"][:, 1].any())
    assert not bool(own["kind"].any())


@pytest.mark.parametrize("known", [1.5, -0.1, lambda x, g: torch.zeros(2), lambda x, g: {"y": x == 0}])
def test_what_is_no_mask_is_refused(known: object, refuses) -> None:
    refuses("known", known_in_training, model(), torch.zeros(3, 4, dtype=torch.long), known, generator())


def test_what_is_known_costs_nothing_and_is_shown_at_the_data_end() -> None:
    shown = []

    def network(theta, t):  # type: ignore[no-untyped-def]
        shown.append(theta)
        return theta.log()

    plain = bfn.BFN(network, DiscreteFlow(3), "logits", (4,))
    x, mask = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[True, False, True, False]])
    loss = PartlyKnown(plain, x, mask).loss(x, torch.tensor([0.3]), generator=generator())
    whole = PartlyKnown(plain, x, torch.ones_like(mask)).loss(x, torch.tensor([0.3]), generator=generator())
    assert float(whole) == 0
    assert float(loss) > 0
    assert torch.equal(shown[0][mask].argmax(-1), x[mask])
    assert float(shown[0][mask].amax(-1).min()) > 1 - 1e-6


def test_a_model_trained_so_fills_in() -> None:
    """Two variables that are always the same: given one, a model that was shown such cases draws the other right,
    where one that heeds it not is right in a third of them."""
    x = torch.randint(3, (512, 1), generator=generator()).expand(512, 2).contiguous()
    trained = bfn.fit(model(2), x, 300, known=0.5, lr=5e-3, ema=0.99, progress=False)
    out = trained.sample(200, nfe=5, known=x[:200], known_mask=torch.tensor([True, False]), seed=0)
    assert float((out.x[:, 1] == x[:200, 0]).float().mean()) > 0.85
    assert trained.info.error_curve is not None
    assert trained.info.error_curve.squared_error[0] > 0.3  # that of the whole data, not of what is known of them


def test_a_fit_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path, refuses) -> None:
    x = torch.randint(3, (64, 4), generator=generator())
    settings = {"batch": 16, "known": 0.5, "progress": False}
    whole = bfn.fit(model(), x, 40, run=tmp_path / "whole", **settings)

    class Stopping(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, taken: int = 0) -> None:
            self.taken = taken

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> torch.Tensor:
            self.taken += 1
            if self.taken == 64 + 256 + 160:  # what fit looks at first, then ten batches
                os.kill(os.getpid(), signal.SIGINT)
            return x[i]

    assert threading.current_thread() is threading.main_thread()
    part = bfn.fit(model(), Stopping(), 40, run=tmp_path / "part", **settings)
    assert 0 < part.info.card["steps"] < 40
    resumed = bfn.fit(model(), Stopping(taken=1000), 40, run=tmp_path / "part", **settings)
    assert resumed.info.card["steps"] == 40
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    refuses("batch=32", bfn.fit, model(), x, 40, run=tmp_path / "whole", batch=32, progress=False)
