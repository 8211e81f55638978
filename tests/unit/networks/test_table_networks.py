"""Networks for tables: what every one of them is held to."""

from functools import partial

import pytest
import torch

from bfn import networks
from bfn.core.flat import Segments
from bfn.networks import TableMLP, TableTransformer

SIZES = {"n_numbers": 2, "class_counts": [3, 5]}


@pytest.fixture(params=[TableMLP, partial(TableMLP, n_waves=3), TableTransformer])
def network(request):
    torch.manual_seed(0)
    made = request.param(**SIZES, width=32, n_blocks=2)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made.eval()


def inputs(n):
    generator = torch.Generator().manual_seed(0)
    theta = [torch.rand(n, k, generator=generator).softmax(1) for k in (3, 5)]
    return torch.cat((torch.randn(n, 2, generator=generator), *theta, torch.rand(n, 2, generator=generator)), 1)


def test_what_is_predicted_depends_on_every_column_and_on_how_well_numbers_are_known(network):
    x = inputs(1).requires_grad_()
    out = network(x, torch.tensor([0.3]))
    assert out.shape == (1, 10)
    for k in range(10):
        (slope,) = torch.autograd.grad(out[0, k], x, retain_graph=True)
        assert bool((slope != 0).all()), k


def test_a_column_s_own_evidence_is_added_by_bayes_rule():
    """An untrained network that knows nothing of other columns predicts prior times evidence."""
    for make in (TableMLP, TableTransformer):
        network, x = make(**SIZES, width=32, n_blocks=1), inputs(4)
        prior = torch.randn(10)
        with torch.no_grad():
            network.prior.copy_(prior)
            predicted = Segments((2, 5), (3, 5), 10).softmax(network(x, torch.full((4,), 0.5)))
        for first, k in ((2, 3), (5, 5)):
            own = slice(first, first + k)
            expected = x[:, own] * prior[own].exp()
            torch.testing.assert_close(predicted[:, own], expected / expected.sum(1, keepdim=True))


def test_rows_do_not_see_each_other_and_the_config_builds_it_again(network):
    x, t = inputs(5), torch.rand(5)
    whole = network(x, t)
    torch.testing.assert_close(network(x[2:3], t[2:3]), whole[2:3])
    again = networks.build(network.config)
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again.eval()(x, t), whole)


def test_numbers_alone_and_classes_alone():
    for make in (TableMLP, TableTransformer):
        assert make(3, [], width=16)(torch.randn(2, 6), torch.rand(2)).shape == (2, 3)
        assert make(0, [2, 4], width=16)(torch.rand(2, 6), torch.rand(2)).shape == (2, 6)


def test_waves_are_of_wavelengths_4_2_1():
    """What the first layer sees of a number that grows by 4 is the same but for the number itself."""
    network = TableMLP(1, [2], width=8, n_waves=3)
    x = torch.tensor([[0.3, 0.5, 0.5, 0.1], [4.3, 0.5, 0.5, 0.1], [2.3, 0.5, 0.5, 0.1]])
    a, b, c = network.features(x, x)[:, 4:]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    torch.testing.assert_close(c, torch.tensor([-1.0, 1, 1, -1, 1, 1]) * a, atol=1e-5, rtol=0)
    assert a.square().view(2, 3).sum(0).tolist() == pytest.approx([1, 1, 1])
