import math

import pytest
import torch

from bfn.quality import bits_report, mean_and_error, nats_to_bits


def test_bits_of_known_nats() -> None:
    assert nats_to_bits(math.log(2)) == 1.0
    estimate = mean_and_error(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert estimate.mean == 2.5
    assert estimate.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert estimate.n == 4


def test_the_sum_of_paired_parts_has_the_error_of_the_sums() -> None:
    ln2 = math.log(2)
    bound = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * ln2
    report = bits_report(bound, 4 * ln2 - bound)
    assert report.bound.mean == pytest.approx(2)
    assert report.total is not None
    assert report.total.mean == pytest.approx(4)
    assert report.total.standard_error == pytest.approx(0, abs=1e-12)


def test_independent_parts_add_in_quadrature_and_sums_are_divided_by_dimensions() -> None:
    bound = torch.tensor([0.0, 2.0, 4.0]) * math.log(2) * 10
    reconstruction = torch.tensor([1.0, 3.0]) * math.log(2) * 10
    report = bits_report(bound, reconstruction, n_dims=10)
    assert report.total is not None
    assert report.total.mean == pytest.approx(4)
    assert report.total.standard_error == pytest.approx(math.hypot(2 / math.sqrt(3), math.sqrt(2) / math.sqrt(2)))


def test_a_bound_alone_has_no_sum() -> None:
    assert bits_report(torch.ones(3)).total is None


@pytest.mark.parametrize("values", [torch.ones(1), torch.ones(2, 2), torch.tensor([1.0, math.nan])])
def test_wrong_input(values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="values"):
        mean_and_error(values)
