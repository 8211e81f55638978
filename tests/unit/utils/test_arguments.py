"""Arguments that cannot be meant are refused in one line, instead of ending deep inside or being taken for others."""

import pytest
import torch

import bfn
import tiny
from messages import refused

X = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.sample(2, nfe=2, steer=lambda x: 1.0), "steer returns a float: expected a differentiable number"),
        (lambda m: m.loss(X, n_steps=1.5), "n_steps=1.5: expected a whole number"),
        (lambda m: bfn.DiscreteFlow(2.7), "n_classes=2.7: expected a whole number"),
        (lambda m: bfn.Classes(torch.tensor([1, 2]), 0.5), "classes of tensor"),
        (lambda m: m.sample(2, nfe=True), "nfe=True: expected a whole number of network calls"),
        (lambda m: m.sample(2, nfe=torch.zeros(2), grid=[0.1, 0.5]), "nfe=tensor.*: expected a whole number"),
        (lambda m: m.sample(2, nfe=2, t_start=0.5, start_from=object()), "start_from: data=.*: expected numbers"),
        (lambda m: tiny.build("text").sample(2, nfe=2, allowed=set()), r"allowed=set\(\): expected numbers, an array"),
        (lambda m: tiny.build("text").sample(2, nfe=2, allowed=2**63), r"allowed=\d+: expected numbers, an array"),
        (lambda m: bfn.ContinuousFlow.for_data(object()), "data=.*: expected numbers, an array"),
        (lambda m: m.sample(2, nfe=10**9), "nfe=10+: expected at most 100,000 network calls"),
        (lambda m: m.sample(2, nfe=2, seed=2**80), r"seed=\d+: expected a whole number"),
        (lambda m: m.sample(2, nfe=2, clip="x"), r"clip=x: expected \(lowest, highest\)"),
        (lambda m: m.sample(2, None), "solver=None: expected a name, such as 'auto'"),
        (lambda m: m.log_likelihood(X, probes=3), "probes=3 with an exact divergence, which needs none"),
        (lambda m: m.sample(2, nfe=5, grid="karras:1e-3"), "grid 'karras:0.001' of 5 times: time nan"),
    ],
)
def test_it_is_refused_in_one_line(call, message):
    refused(message, call, tiny.build("vectors"))


@pytest.mark.parametrize("solver", ["auto", "fast-sde", "fast-ode", "sde-bfn-solver++2", "euler-sde", "deis3"])
@pytest.mark.parametrize("t_start", [1e-20, 1e-300])
def test_a_start_next_to_zero_is_a_start_at_zero(solver, t_start):
    model = tiny.build("vectors")
    start = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    near = model.sample(3, solver, 6, t_start=t_start, initial=start, seed=0)
    assert bool(near.x.isfinite().all())
    assert near.times[0] in (0.0, t_start)


@pytest.mark.parametrize("kind", ["vectors", "images", "text"])
def test_a_network_in_float16_keeps_its_state_and_losses_in_float32(kind):
    full, half = tiny.build(kind), tiny.build(kind).half()
    draw = {"nfe": 6, "solver": "fast-ode", "seed": 0}
    a, b = full.sample(4, **draw), half.sample(4, **draw)
    assert b.u.dtype == torch.float32
    torch.testing.assert_close(b.final, a.final, rtol=0.05, atol=0.05)
    x = a.x
    ours, theirs = (model.loss(x, generator=torch.Generator().manual_seed(0)) for model in (full, half))
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(theirs, ours, rtol=0.2, atol=0.05)


def test_large_inputs_do_not_overflow_beside_a_network_in_float16():
    model = tiny.build("text").half()
    for seed in range(5):
        assert bool(model.sample(8, "bfn", 20, seed=seed).final.isfinite().all())
    network = tiny.build("vectors")
    network.network.half()
    refused(r"float16 by itself: convert the whole model, model.half\(\)", network.sample, 2, nfe=2)
