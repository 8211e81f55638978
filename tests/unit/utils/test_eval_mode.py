"""Whatever samples or measures a model leaves dropout out, and gives the model its mode back."""

import threading

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn._utils.pieces import evaluating
from bfn.core.losses import error_curve
from bfn.likelihood import log_likelihood
from bfn.likelihood.bounds import receiver_variance
from bfn.training.tuning.calibration import search_grid
from bfn.training.tuning.objectives import EndPoint
from bfn.training.tuning.tables import tune

X = torch.linspace(-1, 1, 12).view(4, 3)
TUNING = {"steps": 1, "batch": 4, "held_out": 4}


class Dropping(nn.Module):
    """A network that is another one at every call, unless in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout, self.frozen = nn.Linear(3, 3), nn.Dropout(0.5), nn.Dropout(0.5).eval()

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        return self.dropout(self.layer(inputs))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


CALLS = {
    "model.sample": lambda model: model.sample(4, nfe=3, generator=seeded()).x,
    "sample": lambda model: bfn.sample(model, 4, "fast-ode", 3, generator=seeded()).x,
    "search_grid": lambda model: search_grid(model, 3, n=4, reference=6, rounds=1, generator=seeded()),
    "model.log_likelihood": lambda model: model.log_likelihood(X, nfe=5).log_prob,
    "log_likelihood": lambda model: log_likelihood(model, X, nfe=5).log_prob,
    "receiver_variance": lambda model: receiver_variance(model, X, 3, generator=seeded()),
    "error_curve": lambda model: torch.tensor(error_curve(model, X, 4, seeded()).squared_error),
    "tune": lambda model: torch.tensor(tune(model, 3, EndPoint(8), **TUNING).after),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_runs_in_evaluation_mode_and_leaves_the_mode_as_it_was(call) -> None:
    model = bfn.BFN(Dropping(), bfn.ContinuousFlow(), "data", (3,))
    modes = [part.training for part in model.modules()]
    found = call(model)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(found, call(model.eval()))
    assert not model.training


def test_the_mode_comes_back_after_an_error_too() -> None:
    network = Dropping()

    def fail() -> None:
        with evaluating(network):
            raise KeyError(network.dropout.training)

    with pytest.raises(KeyError) as error:
        fail()
    assert "False" in str(error.value)
    assert (network.training, network.dropout.training, network.frozen.training) == (True, True, False)


def test_threads_that_share_a_model_all_see_it_without_dropout() -> None:
    network = Dropping()
    entered, left = threading.Event(), threading.Event()
    seen = []

    def first() -> None:
        with evaluating(network):
            entered.set()
            second_in.wait()
        left.set()

    second_in = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with evaluating(network):
        second_in.set()
        left.wait()
        seen = [network.training, network.dropout.training]
    thread.join()
    assert seen == [False, False]
    assert (network.training, network.dropout.training, network.frozen.training) == (True, True, False)
