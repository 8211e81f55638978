"""The solvers give the numbers of the paper's released code, on two toy networks.

tests/data/official-solvers holds the networks' weights, the starts and the released code's results (float32).
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import bfn

DATA = Path(__file__).parents[1] / "data" / "official-solvers"
CASES = json.loads((DATA / "cases.json").read_text())
TENSORS = load_file(DATA / "cases.safetensors")
NAMES = {
    "image/ode_bfnsolver1": "bfn-solver++1",
    "image/ode_bfnsolver2_multi_step": "bfn-solver++2",
    "image/sde_bfnsolver2_multi_step": "sde-bfn-solver++2",
    "image/sde_euler": "euler-sde",
    "text/ode_bfnsolver1": "bfn-solver1",
    "text/ode_bfnsolver2_multi_step": "bfn-solver2",
    "text/ode_bfnsolver2_single_step": "bfn-solver2-singlestep",
    "text/sde_bfnsolver1": "sde-bfn-solver1",
    "text/sde_bfnsolver2_multi_step": "sde-bfn-solver2",
}


def noise_network(mu: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return 0.8 * torch.tanh(mu @ TENSORS["W"] + TENSORS["b"] * t[:, None]) + 0.5 * mu


def logits_network(theta: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (3 * torch.tanh(theta.flatten(1) @ TENSORS["V"] + TENSORS["c"] * t[:, None])).view_as(theta)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["key"])
def test_matches_the_released_code(case: dict) -> None:
    kind = case["key"].split("/")[0]
    solver = NAMES[f"{kind}/{case['alg']}"]
    nfe = case["steps"] * (2 if "single_step" in case["alg"] else 1)
    initial = TENSORS[f"{kind}_init_unit"]
    settings = {"nfe": nfe, "t_start": case["eta"], "initial": initial, "seed": case["seed"]}
    if kind == "image":
        flow = bfn.ContinuousFlow(sigma_1=case["min_variance"] ** 0.5)
        out = bfn.BFN(noise_network, flow, "noise", (7,)).sample(3, solver, clip=(-1, 1), **settings)
        result = out.x
    else:
        flow = bfn.DiscreteFlow(n_classes=4, beta_1=case["max_sqrt_beta"] ** 2)
        out = bfn.BFN(logits_network, flow, "logits", (5,)).sample(3, solver, **settings)
        inputs = flow.network_input(out.u, float(flow.schedule.s(out.times[-1])))
        result = logits_network(inputs, torch.full((3,), out.times[-1], dtype=torch.float32))
    assert out.nfe == nfe
    torch.testing.assert_close(result, TENSORS[case["key"]], atol=1e-5, rtol=0)
