"""Draw one picture a family of solvers for docs/solvers.md: paths in the plane, 8 calls, on eight exact peaks.

    python tools/solver_pictures.py docs/images

The same starts for all.
"""

import argparse
import math
from pathlib import Path

import torch

from bfn import viz
from bfn.core import losses
from bfn.exact.numbers import GaussianMixture

FAMILIES = {
    "original": "bfn",
    "optimal": "bfn-optimal",
    "paper": "bfn-solver++2",
    "zoo": "unipc3",
    "fast-ode": "fast-ode",
    "dial": "fast-sde",
}


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    angles = torch.arange(8) * (2 * math.pi / 8)
    means = 0.8 * torch.stack((angles.cos(), angles.sin()), 1)
    model = GaussianMixture(means, stds=torch.full((8,), 0.1))
    generator = torch.Generator().manual_seed(0)
    model.info.error_curve = losses.error_curve(model, model.sample_data(500, generator), generator=generator)
    for family, solver in FAMILIES.items():
        paths = viz.record(model, 60, solver=solver, nfe=8, generator=torch.Generator().manual_seed(1))
        axes = viz.plane(paths, model=model)
        axes.set_title(f"{solver}, 8 calls")
        viz.save(axes, folder / f"solver-{family}.png")


if __name__ == "__main__":
    main()
