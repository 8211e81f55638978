"""Measure what matching distributions adds to distillation, on points in two dimensions.

    python benchmarks/matching.py --steps 600 2000

The data are eight narrow normal distributions, the teacher a trained network. For each seed, number of steps and weight
of matching, prints the energy distance of one and two calls from the data, and the share of samples that are on none of
the normal distributions.
"""

import argparse

import torch
from torch import Tensor

import bfn
from bfn.exact.numbers import GaussianMixture
from bfn.networks.mlp import MLP
from bfn.quality.comparison import markdown_table
from bfn.training.tuning.objectives import energy_distance

STD, WIDTH, N = 0.05, 96, 2000


def trained(mixture: GaussianMixture) -> bfn.BFN:
    """A teacher."""
    torch.manual_seed(0)
    model = bfn.BFN(MLP(2, width=WIDTH, condition_features=32), mixture.flow, "preconditioned", (2,))
    data = mixture.sample_data(20_000, torch.Generator().manual_seed(1)).float()
    return bfn.fit(model, data, steps=3000, lr=3e-3, progress=False)


def main() -> None:
    """Train, distil, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[600, 2000])
    parser.add_argument("--match", type=float, nargs="+", default=[0.0, 0.3, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    means = 1.5 * torch.randn(8, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixture = GaussianMixture(means, stds=torch.full((8,), STD))
    teacher, data = trained(mixture), mixture.sample_data(N, torch.Generator().manual_seed(8))

    def cells(model: bfn.BFN, nfe: int, **settings: str) -> list[str]:
        x: Tensor = model.sample(N, nfe=nfe, seed=3, **settings).x.double()
        off = (torch.cdist(x, means).amin(1) > 4 * STD).double().mean()
        return [f"{energy_distance(x, data):.4f}", f"{100 * float(off):.1f} %"]

    rows = [["the teacher's `fast-ode`, 16 calls", "", *cells(teacher, 16, solver="fast-ode"), "", ""]]
    for steps in options.steps:
        for match in options.match:
            for seed in options.seeds:
                student = bfn.distill(
                    teacher, steps, paths=4000, calls=2, lr=2e-3, seed=seed, match=match, teacher={"nfe": 20}
                )
                rows.append([f"{steps} steps, match {match:g}", f"{seed}", *cells(student, 1), *cells(student, 2)])
                print(" | ".join(rows[-1]), flush=True)
    header = ["", "seed", "energy distance, 1 call", "off, 1 call", "energy distance, 2 calls", "off, 2 calls"]
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
