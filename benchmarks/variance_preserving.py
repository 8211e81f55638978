"""Compare the solvers of this library with DPM-Solver++ 2M of diffusers on an exact diffusion model.

    python benchmarks/variance_preserving.py --calls 5 10 20

The data are a mixture of six normal distributions in 8 dimensions under 1000 linear betas. Prints the mean distance to
the end of the exact probability-flow ODE.
"""

import argparse

import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

import bfn
from bfn.core.flows import NoiseLevel
from bfn.interop.variance_preserving import VariancePreservingSchedule

ALPHAS = DPMSolverMultistepScheduler().alphas_cumprod
SCHEDULE = VariancePreservingSchedule(tuple(ALPHAS.double().tolist()))
LAST = len(ALPHAS) - 1


def mixture(generator: torch.Generator) -> bfn.exact.GaussianMixture:
    means = torch.randn(6, 8, generator=generator, dtype=torch.float64) * 0.7
    stds = torch.rand(6, generator=generator, dtype=torch.float64) * 0.3 + 0.05
    return bfn.exact.GaussianMixture(means, stds=stds, flow=bfn.ContinuousFlow(schedule=SCHEDULE))


def dpm_solver(
    model: bfn.exact.GaussianMixture, noise: Tensor, calls: int, **settings: object
) -> tuple[Tensor, Tensor]:
    scheduler = DPMSolverMultistepScheduler(**settings)
    scheduler.set_timesteps(calls)
    x = noise.float()
    for timestep in scheduler.timesteps:
        t = 1 - timestep.double() / LAST
        s = float(SCHEDULE.s(t))
        u = x.double() * (1 + s * s) ** 0.5
        epsilon = u - s * model.output(u, NoiseLevel(t.expand(len(x)), s)).mean
        x = scheduler.step(epsilon.float(), timestep, x).prev_sample
    return x.double(), scheduler.timesteps


def ours(model: bfn.exact.GaussianMixture, noise: Tensor, calls: int | None, grid: Tensor | None = None) -> Tensor:
    s = float(SCHEDULE.s(0.0 if grid is None else grid[0]))
    return bfn.sample(model, len(noise), "fast-ode", calls, grid=grid, initial=noise * (1 + s * s) ** 0.5).x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(options.seed)
    model = mixture(generator)
    noise = torch.randn(options.n, 8, generator=generator, dtype=torch.float64)
    end = ours(model, noise, 500)

    def error(x: Tensor) -> str:
        return f"{float((x - end).norm(dim=1).mean()):.3f}"

    print("| calls | DPM-Solver++ 2M | fast-ode on its grid | with use_lu_lambdas | fast-ode on its grid | fast-ode |")
    print("|---|---|---|---|---|---|")
    for calls in options.calls:
        cells = []
        for settings in ({}, {"use_lu_lambdas": True}):
            x, timesteps = dpm_solver(model, noise, calls, **settings)
            cells += [error(x), error(ours(model, noise, None, 1 - timesteps.double() / LAST))]
        print(f"| {calls} | {' | '.join(cells)} | {error(ours(model, noise, calls))} |")


if __name__ == "__main__":
    main()
