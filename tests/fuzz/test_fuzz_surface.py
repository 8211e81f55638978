"""The public surface with odd arguments: constructors, samples, losses, likelihoods."""

import inspect
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st

import bfn
import tiny
from bfn import networks, solvers
from bfn.core import grids, heads
from bfn.core.losses import WEIGHTINGS
from bfn.core.registry import registry
from bfn.core.schedules import SCHEDULES
from fuzzing import allowed, assert_finite, calls, cases, run, values

KINDS = ("vectors", "images", "text", "exact")
STORED = ("flow", "schedule", "head", "weighting", "tokenizer")


@cache
def model(kind: str) -> bfn.Model:
    return bfn.exact.GaussianMixture([[0.0], [0.5]], stds=[0.1, 0.1]) if kind == "exact" else tiny.build(kind)


def data(kind: str) -> torch.Tensor:
    return model(kind).sample(3, nfe=2, seed=0).x


SAMPLING = calls(
    solver=values("auto", *solvers.names()), nfe=values(1, 2, 3, 5, None),
    grid=values(None, "uniform", "log-snr", "power:2", "karras:7", "karras:1e-3", [0.1, 0.4], np.array([0.0, 0.5])),
    t_start=values(None, 0.0, 1e-3, 1e-20, 0.5), g=values(None, 0.0, 1.0, 2.0), clip=values(None, False, (-1, 1)),
    label=values(None, 0, 2, [0, 1], torch.tensor([0, -1]), "1"), guidance=values(None, 1.0, 2.0),
    temperature=values(1.0, 0.5), seed=values(0, 1), initial=values(None), known=values(None), known_mask=values(None),
    allowed=values(None), start_from=values(None), steer=values(None, lambda x: x.flatten(1).sum(1)),
)  # fmt: skip
LOSSES = calls(
    t=values(None, torch.tensor([0.1, 0.5, 0.9]), torch.zeros(3), torch.ones(3), [0.1, 0.2, 0.3]),
    n_steps=values(None, 1, 5, 100), label=values(None, torch.tensor([0, 1, -1])),
    weighting=values(None, *WEIGHTINGS), condition=values(None), present=values(None),
)  # fmt: skip
LIKELIHOOD = calls(
    method=values("ode", "bound", "n-step"), nfe=values(None, 5, 10), tolerance=values(None, 1e-2),
    divergence=values(None, "exact", "hutchinson"), probes=values(1, 2), importance=values(1, 2),
    levels=values(None, 2, 256), label=values(None, 0),
)  # fmt: skip


@cases(60, 3000)
def test_samples(n):
    def check(kind, count, options):
        with allowed():
            out = model(kind).sample(count, **options)
            assert_finite(out.x)
            assert_finite(out.final)

    run(n, check, kind=st.sampled_from(KINDS), count=values(1, 2, 2, 3), options=SAMPLING)


@cases(40, 2000)
def test_losses(n):
    def check(kind, x, options):
        with allowed():
            assert_finite(model(kind).loss(data(kind) if x == "data" else x, **options))

    run(n, check, kind=st.sampled_from(KINDS), x=values("data", "data", "data"), options=LOSSES)


@cases(10, 400)
def test_likelihoods(n):
    def check(kind, options):
        with allowed():
            assert_finite(model(kind).log_likelihood(data(kind), **options).log_prob)

    run(n, check, kind=st.sampled_from(("vectors", "exact")), options=LIKELIHOOD)


def parts():
    """Everything that a config may name, and the grids, with arguments of any kind."""
    found = [kind for name in STORED for kind in registry(name).values()]
    return [*found, *SCHEDULES.values(), *heads.HEADS.values(), bfn.ModelInfo, bfn.Classes]


@cases(200, 2000)
def test_parts(n):
    arguments = st.lists(values(0.5, 1e-3, 4, (0.1, 0.9), "a"), max_size=3)

    def check(part, given):
        with allowed():
            repr(part(*given))

    run(n, check, part=st.sampled_from(parts()), given=arguments)


@cases(100, 1000)
def test_grids_by_name(n):
    def check(name, number, calls, t_start, kind):
        with allowed():
            grid = grids.parse(name if number is None else f"{name}:{number}")
            times = model(kind).sample(1, nfe=calls, grid=grid, t_start=t_start, seed=0).times
            assert all(0 <= a < b <= 1 for a, b in pairwise(times))

    run(
        n, check, name=values(*grids.GRIDS), number=values(None, 1.0, 2.0, 1e-3, 7.0), calls=values(2, 3, 8),
        t_start=values(None, 1e-3, 0.2), kind=st.sampled_from(("exact", "text")),
    )  # fmt: skip


@cases(60, 600)
def test_networks(n):
    arguments = calls(
        width=values(8), channels=values(8), n_blocks=values(1), n_heads=values(1, 2), n_classes=values(3),
        in_features=values(2), in_channels=values(1), multipliers=values([1]), max_length=values(16),
        n_labels=values(0, 2), dropout=values(0.0, 0.1), condition_features=values(8), kernel_size=values(3),
    )  # fmt: skip
    names = ("mlp", "unet", "transformer")

    def check(name, given):
        known = inspect.signature(networks.NETWORKS[name]).parameters
        fitting = {key: value for key, value in given.items() if key in known}
        with allowed():
            networks.build({"name": name, **fitting})

    run(n, check, name=st.sampled_from(names), given=arguments)
