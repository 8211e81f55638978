"""The example of the docstring of ``bfn.solvers``: a new solver in five lines."""

import re
from textwrap import dedent

import torch

from bfn import solvers
from bfn.exact.numbers import GaussianMixture


def test_the_solver_of_the_docstring_is_found_by_its_name() -> None:
    example = "\n".join(re.findall(r"^(?:    .*)?$", solvers.__doc__ or "", re.M))
    exec(dedent(example), {**vars(solvers)})
    try:
        model = GaussianMixture(torch.tensor([[-0.5], [0.5]]), stds=torch.tensor([0.1, 0.2]))
        grid, initial = [0.1, 0.4, 0.7, 1.0], torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
        found, expected = (
            model.sample(5, name, grid=grid, initial=initial.double()).x for name in ("leap", "bfn-solver1")
        )
        torch.testing.assert_close(found, expected)
    finally:
        del solvers.SOLVERS["leap"]
