"""Bayesian networks against brute force: every sum is also taken over all rows there are."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bfn
from bfn.core.flows import NoiseLevel
from bfn_lab.bayesian_network import BayesianNetwork, Node, read_bif
from bif import SMALL, written


def random_network(seed: int) -> BayesianNetwork:
    """Seven nodes in loops, one of one level, with zeros among the probabilities."""
    generator = torch.Generator().manual_seed(seed)
    sizes, parents = [2, 3, 1, 2, 3, 2, 2], [(), (0,), (0,), (0, 1), (1, 2), (3, 4), (0, 5)]
    order = torch.randperm(7, generator=generator).tolist()
    nodes = []
    for i in range(7):
        probs = torch.rand([*(sizes[p] for p in parents[i]), sizes[i]], generator=generator, dtype=torch.float64)
        probs[..., :-1] *= torch.rand(probs[..., :-1].shape, generator=generator) < 0.8
        probs = (probs + 1e-9 * (probs.sum(-1, keepdim=True) == 0)) / probs.sum(-1, keepdim=True).clamp(min=1e-9)
        own = tuple(f"n{p}" for p in parents[i])
        nodes.append(Node(f"n{i}", tuple(f"l{k}" for k in range(sizes[i])), own, probs))
    return BayesianNetwork([nodes[i] for i in order])


def all_rows(network: BayesianNetwork) -> dict[str, Tensor]:
    sizes = {name: int(flow.kappa) for name, flow in network.flow.parts.items()}
    rows = torch.tensor(list(product(*(range(size) for size in sizes.values()))))
    return {name: rows[:, i] for i, name in enumerate(sizes)}


@pytest.mark.parametrize("seed", range(5))
def test_posterior_and_evidence_are_those_of_brute_force(seed: int) -> None:
    network = random_network(seed)
    rows = all_rows(network)
    log_prior = network.log_prob(rows)
    assert log_prior.exp().sum().item() == pytest.approx(1, abs=1e-12)
    u = torch.randn(4, *network.flow.state_shape(network.data_shape), dtype=torch.float64) * 3
    level = network.flow.noise_level(0.7, 4, 1, u)
    gains = [part.state_of(u * level.s)[:, rows[part.name]] for part in network.flow.layout]
    log_joint = log_prior + sum(gains)  # (4, rows)
    output = network.output(u, level)
    for part in network.flow.layout:
        weights = log_joint.softmax(1)
        expected = torch.stack([weights[:, rows[part.name] == k].sum(1) for k in range(int(part.flow.kappa))], 1)
        found = output.parts[part.name].logits.softmax(-1)
        assert torch.allclose(found, expected, atol=1e-10)
    sender = torch.stack(
        [network.log_sender(u, network.as_data(rows)[i : i + 1].expand(4, -1), level) for i in range(len(log_prior))], 1
    )
    assert torch.allclose(network.log_evidence(u, level), torch.logsumexp(sender + log_prior, 1), atol=1e-9)


def test_levels_that_cannot_be_stay_at_nothing_whatever_the_evidence() -> None:
    nodes = [
        Node("a", ("x", "y"), (), torch.tensor([1.0, 0.0], dtype=torch.float64)),
        Node("b", ("x", "y"), ("a",), torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)),
        Node("c", ("x", "y"), ("a", "b"), torch.tensor([[[1, 0], [0, 1]], [[1, 0], [1, 0]]], dtype=torch.float64)),
    ]
    network = BayesianNetwork(nodes)
    u = torch.tensor([[-500.0, 500.0, 3.0, 0.0, -400.0, 400.0]], dtype=torch.float64)
    output = network.output(u, NoiseLevel(torch.ones(1), 2.0))
    probs = {name: part.logits.softmax(-1)[0] for name, part in output.parts.items()}
    assert probs["a"].tolist() == [1, 0]
    assert probs["b"].tolist() == pytest.approx([0, 1], abs=1e-12)  # since c is y with certainty
    assert probs["c"].tolist() == pytest.approx([0, 1], abs=1e-12)


def test_the_score_is_the_slope_of_the_evidence() -> None:
    network = random_network(9)
    u = torch.randn(3, *network.flow.state_shape(network.data_shape), dtype=torch.float64, requires_grad=True)
    level = network.flow.noise_level(0.5, 3, 1, u.detach())
    (slope,) = torch.autograd.grad(network.log_evidence(u, level).sum(), u)
    scale, shift = (some.double() for some in network.flow.message_map)
    w_hat = scale * network.output(u, level).mean.detach() + shift
    kappa = network.flow.noise_scale(u).square()
    assert torch.allclose(slope, (level.s * w_hat - u) / kappa, atol=1e-9)


def test_rows_come_with_their_probabilities() -> None:
    """Chi-square over all rows at 1e-4: one false alarm in ten thousand seeds."""
    from scipy.stats import chi2

    network = random_network(2)
    rows = all_rows(network)
    expected = network.log_prob(rows).exp()
    drawn = network.as_data(network.sample_data(20_000, torch.Generator().manual_seed(1))).long()
    every = network.as_data(rows).long()
    counts = (drawn.unsqueeze(1) == every).all(2).sum(0)
    assert int(counts[expected == 0].sum()) == 0
    often = expected > 5 / 20_000
    gaps = (counts[often] - 20_000 * expected[often]).square() / (20_000 * expected[often])
    assert float(gaps.sum()) < chi2.ppf(1 - 1e-4, int(often.sum()))


@pytest.mark.parametrize("solver", ["auto", "bfn"])
def test_solvers_sample_it(solver: str, tmp_path: Path) -> None:
    """With many calls samples follow the network: total variation of 4,000 rows of 12 kinds is below 0.05."""
    network = BayesianNetwork.read(written(tmp_path))
    rows = all_rows(network)
    x = network.sample(4000, solver, nfe=60, seed=0).x
    drawn, every = network.as_data(x).long(), network.as_data(rows).long()
    shares = (drawn.unsqueeze(1) == every).all(2).double().mean(0)
    assert float((shares - network.log_prob(rows).exp()).abs().sum() / 2) < 0.05


def test_a_table_of_it_can_be_asked_for_rows_with_given_cells(tmp_path: Path) -> None:
    """p(rain | grass is wet) by hand: 0.2 (0.01 x 0.99 + 0.99 x 0.8) against 0.8 x 0.3 x 0.9."""
    network = BayesianNetwork.read(written(tmp_path))
    rows = bfn.TableSynthesizer.of(network).sample(3000, given={"grass": "wet"}, nfe=40)
    assert set(rows["grass"]) == {"wet"}
    rain = 0.2 * (0.01 * 0.99 + 0.99 * 0.8)
    share = rain / (rain + 0.8 * 0.3 * 0.9)
    assert (rows["rain"] == "yes").mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 3000) ** 0.5 + 0.01)


@pytest.mark.parametrize("name", ["small.bif", "small.bif.gz"])
def test_reads_what_is_written(name: str, tmp_path: Path) -> None:
    network = BayesianNetwork.read(written(tmp_path, SMALL, name))
    table = network.decode(network.sample_data(50, torch.Generator().manual_seed(0)))
    assert list(table.columns) == ["rain", "sprinkler", "grass"]
    assert set(table["sprinkler"]) <= {"on", "off", "out of order"}
    one = table.assign(rain="no", sprinkler="on", grass="dry")
    assert network.log_prob(network.encode(one))[0].exp().item() == pytest.approx(0.8 * 0.3 * 0.1)
    assert network.marginals()["grass"][0].item() == pytest.approx(0.2 * (0.01 * 0.99 + 0.99 * 0.8) + 0.8 * 0.3 * 0.9)


def test_a_table_lists_the_levels_of_the_variable_slowest(tmp_path: Path) -> None:
    text = SMALL.replace("(yes) 0.01, 0.99, 0; (no) 0.3, 0.5, 0.2;", "table 0.01, 0.3, 0.99, 0.5, 0, 0.2;")
    by_rows, by_table = (read_bif(written(tmp_path, some, f"{i}.bif")) for i, some in enumerate((SMALL, text)))
    assert torch.equal(by_rows[1].probs, by_table[1].probs)
