import pytest
import torch

from bfn.core.solver import plan
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.training.tuning.calibration import search_grid


def distance(model, grid, target, initial) -> float:
    out = model.sample(len(initial), "bfn-solver++1", None if grid is not None else 5, grid=grid, initial=initial)
    return float((out.x - target).norm(dim=1).mean())


def test_the_grid_found_is_better_on_fresh_starts() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    model = GaussianMixture(means, stds=torch.full((5,), 0.1))
    times = search_grid(model, 5, "bfn-solver++1", n=32, reference=50, rounds=4, generator=generator)
    assert times.dtype == torch.float64
    assert times.shape == (5,)
    assert float(times[0]) == 1e-3
    assert bool((times.diff() > 0).all())
    fresh = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    target = model.sample(300, "fast-ode", 100, initial=fresh, t_start=1e-3).x
    assert distance(model, times, target, fresh) < 0.5 * distance(model, None, target, fresh)


def test_classes_too() -> None:
    generator = torch.Generator().manual_seed(1)
    model = StringSet(torch.randint(3, (6, 4), generator=generator), n_classes=3, beta_1=0.5)
    times = search_grid(model, 4, "bfn-solver2", n=16, rounds=1, reference=40, generator=generator)
    assert bool((times.diff() > 0).all())
    assert float(times[-1]) <= 1


@pytest.mark.parametrize(
    ("solver", "message"),
    [("fast-sde", "'fast-sde' draws noise"), ("bfn-solver2-singlestep", "more than one call a step")],
)
def test_solvers_without_one_path_a_node_are_refused(solver: str, message: str) -> None:
    model = StringSet(torch.tensor([[0, 1]]), n_classes=3)
    with pytest.raises(ValueError, match=message):
        search_grid(model, 4, solver)


@pytest.mark.parametrize("wrong", [{"reference": 0}, {"n": 0}, {"rounds": -1}])
def test_numbers_too_small_are_named(wrong) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"^{name}={value}: expected at least"):
        search_grid(GaussianMixture(torch.zeros(1, 2), stds=torch.ones(1)), 4, **wrong)


def test_its_own_grid_is_the_worst_it_gives() -> None:
    """Nothing is moved that does not help: with no rounds the solver's own grid comes back."""
    model = GaussianMixture(torch.zeros(1, 2), stds=torch.ones(1))
    times = search_grid(model, 4, rounds=0, n=4)
    own = plan(model, "fast-ode", 4).table.times
    assert times.tolist() == pytest.approx(list(own), rel=1e-9)
