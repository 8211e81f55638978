"""Drawing in batches: any options, drawn at random, give the samples of the batches one by one, in every process."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn
import tiny
from bfn._utils.pieces import block_generator

N_CASES = 8
KINDS = ("images", "text", "molecules", "joint")
SOLVERS = {
    "images": ("auto", "fast-ode", "fast-sde", "bfn-solver++2", "sde-bfn-solver++2", "unipc3"),
    "text": ("auto", "bfn", "bfn-solver2", "sde-bfn-solver1", "fast-sde"),
    "molecules": ("auto", "bfn", "fast-sde"),
    "joint": ("auto", "fast-ode", "bfn-solver1", "fast-sde"),
}


@cache
def model(kind: str) -> bfn.BFN:
    """A small model: numbers with classes, text, molecules of different lengths with a condition, or joint data."""
    if kind != "joint":
        return tiny.build(kind)
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.05), kind=bfn.DiscreteFlow(3))
    return bfn.BFN(lambda x, t: x, flow, {"x": "data", "kind": "logits"}, {"x": (2,), "kind": (3,)})


def options_of(case: int) -> tuple[str, int, int, int, dict[str, Any]]:
    """Draw a kind of model, a number of samples, a batch size, a seed and options; equal in every process."""
    chance, noise = random.Random(case), torch.Generator().manual_seed(case)
    kind = KINDS[case % len(KINDS)]
    n = chance.randint(1, 7)
    options: dict[str, Any] = {"solver": chance.choice(SOLVERS[kind]), "nfe": chance.randint(2, 5)}
    if chance.random() < 0.4:
        options |= {"grid": "uniform", "t_start": chance.choice([0.01, 0.2])} if options["solver"] != "bfn" else {}
    if options["solver"] == "fast-sde" and chance.random() < 0.5:
        options["g"] = chance.choice([0.5, 1.0])
    if kind == "images":
        options["label"] = chance.choice([None, 1, [i % 3 for i in range(n)], torch.arange(n) % 3])
        options |= chance.choice([{}, {"clip": False}, {"clip": (-0.5, 0.5)}])
        options |= {"guidance": 2.0, "label": 1} if chance.random() < 0.3 else {}
        x, mask = torch.zeros(n, 1, 8, 8), torch.rand(n, 1, 8, 8, generator=noise) < 0.3
        options |= chance.choice([{}, {"known": x, "known_mask": mask, "known_at": chance.choice(["data", "path"])}])
    if kind in ("text", "molecules"):
        options |= chance.choice([{}, {"temperature": 0.7}])
        shape = model(kind).flow.state_shape(model(kind).data_shape)
        options |= chance.choice([{}, {"initial": torch.randn(n, *shape, generator=noise)}])
    if kind == "molecules":
        options |= chance.choice([{}, {"lengths": 3}, {"lengths": [2 + i % 3 for i in range(n)]}])
        options |= chance.choice([{}, {"condition": {"gap": torch.linspace(0.1, 0.4, n)}}])
    if kind == "joint":
        options |= chance.choice([{}, {"known": {"kind": torch.randint(3, (n, 3), generator=noise)}}])
        options |= chance.choice([{}, {"temperature": 1.3}])
    return kind, n, chance.randint(1, n), chance.randint(0, 2**32), options


def drawn(case: int) -> bfn.Samples:
    kind, n, batch, seed, options = options_of(case)
    return model(kind).sample(n, batch=batch, seed=seed, **options)


def digest(samples: bfn.Samples) -> str:
    """Return a hash of the samples and of their conditions."""
    parts = samples.x if isinstance(samples.x, dict) else {"x": samples.x}
    tensors = {**parts, "u": samples.u, **samples.conditions}
    data = b"".join(name.encode() + value.cpu().numpy().tobytes() for name, value in sorted(tensors.items()))
    return hashlib.sha256(data).hexdigest()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(case=st.integers(0, 10**6))
def test_batches_are_those_drawn_one_by_one(case: int) -> None:
    kind, n, batch, seed, options = options_of(case)
    whole = drawn(case)
    bound = bfn.Request.from_options(**options).bind(model(kind), n)
    blocks = [slice(a, min(n, a + batch)) for a in range(0, n, batch)]
    parts = [bound.rows(block).draw(block_generator(seed, i)) for i, block in enumerate(blocks)]
    assert digest(bfn.Samples.joined(parts)) == digest(whole)
    if batch == n:
        assert digest(model(kind).sample(n, seed=seed, **options)) == digest(whole)


def test_another_process_draws_the_same() -> None:
    code = "import json, test_batches as t; print(json.dumps([t.digest(t.drawn(i)) for i in range(t.N_CASES)]))"
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1]), str(Path(bfn.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, timeout=300)
    assert json.loads(done) == [digest(drawn(case)) for case in range(N_CASES)]


@pytest.mark.parametrize("particles", [2, 4])
def test_particles_count_as_states_of_a_batch(particles: int) -> None:
    calls: list[int] = []
    options = {"known": torch.zeros(1, 8, 8), "known_mask": torch.arange(64).view(1, 8, 8) < 8, "particles": particles}
    out = model("images").sample(6, nfe=3, batch=4, seed=1, on_step=lambda step: calls.append(len(step.u)), **options)
    assert max(calls) <= 4
    assert sum(calls) == 6 * particles * 3
    assert out.effective_sample_size.shape == (6, 3)
