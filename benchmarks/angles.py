"""Compare angles as pairs (cos, sin) with a flow whose messages are angles, and print tables.

    python benchmarks/angles.py --n 20000 --repeats 6

The data are exact mixtures of von Mises distributions over two angles. The error is the Wasserstein distance on the
circle, in radians, between samples and the exact distribution, averaged over both angles, their sum and their
difference, which depend on the dependence of the angles; beside it stands that of the same number of exact samples.

The other flow is common for crystals and proteins: its sender is a von Mises distribution about the angle. Messages y_i
of concentration alpha_i add up to h = sum_i alpha_i (cos y_i, sin y_i), which corresponds to s u: the exact posterior
given h is the same function. It has no ODE, and its accuracy depends on the messages. Its alpha_i are chosen so that
for uniform angles the mean resultant length E A(|h|) after each step is that of our flow. A message is sent about the
direction of the predicted mean (as networks that predict one angle do) or about a draw of the output distribution.
"""

import argparse
from collections.abc import Callable
from math import pi

import torch
from torch import Tensor

from bfn._utils.estimate import mean_estimate
from bfn.core.flows import ContinuousFlow, NoiseLevel
from bfn.exact.numbers import VonMisesMixture
from bfn.kinds.angles import VonMises, angles_of, mean_length
from bfn.quality.comparison import markdown_table

SIGMA_1 = 0.05
CALLS = (5, 10, 20, 40)
PROBLEMS = {
    "wide: 3 components, concentrations 1 to 6": ([[2.9, 0.3], [-0.5, -1.2], [1.0, 2.0]], [[6, 2], [4, 1], [2, 5]]),
    "narrow: 4 components, concentrations 20 to 200": (
        [[-2.0, 1.0], [-1.1, -1.0], [1.1, -2.8], [3.1, 0.0]],
        [[100, 50], [50, 200], [20, 80], [200, 20]],
    ),
}


def concentrations(flow: ContinuousFlow, times: Tensor, n: int = 10_000, seed: int = 5) -> list[float]:
    """alpha of each von Mises message, after which as much is known as at our next time; uniform angles, simulated."""
    generator = torch.Generator().manual_seed(seed)
    zero = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(n, 2)
    h = torch.zeros(n, 2, dtype=torch.float64)
    found = []
    for s in flow.schedule.s(times[1:]).tolist():
        u = s * zero + torch.randn(n, 2, generator=generator, dtype=torch.float64)
        target = float(mean_length(s * u.norm(dim=-1)).mean())
        low, high = 0.0, 4 * s * s + 4
        state = generator.get_state()
        for _ in range(20):
            alpha = (low + high) / 2
            generator.set_state(state)
            moved = h + alpha * VonMises.single(alpha * zero).draw(generator)
            low, high = (alpha, high) if float(mean_length(moved.norm(dim=-1)).mean()) < target else (low, alpha)
        generator.set_state(state)
        h = h + alpha * VonMises.single(alpha * zero).draw(generator)
        found.append(alpha)
    return found


def von_mises_flow(model: VonMisesMixture, n: int, alphas: list[float], draws: bool, seed: int) -> Tensor:
    """Samples of the flow of von Mises messages, one call more than messages; the last call's direction."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.zeros(n, *model.data_shape, dtype=torch.float64)
    level = NoiseLevel(torch.zeros(n), 1.0)
    for alpha in alphas:
        output = model.output(h, level)
        about = output.draw(generator) if draws else output.nearest(output.mean)
        h = h + alpha * VonMises.single(alpha * about).draw(generator)
    output = model.output(h, level)
    return output.nearest(output.mean)


def wasserstein(ours: Tensor, theirs: Tensor, bins: int = 4096) -> float:
    """On the circle: the least mean difference of the distribution functions over where the circle is cut open."""

    def distribution(angles: Tensor) -> Tensor:
        places = (torch.remainder(angles, 2 * pi) * (bins / (2 * pi))).long().clamp(max=bins - 1)
        return torch.bincount(places, minlength=bins).double().cumsum(0) / len(angles)

    apart = distribution(ours) - distribution(theirs)
    return float((apart - apart.median()).abs().mean()) * 2 * pi


def error(ours: Tensor, theirs: Tensor) -> float:
    """Return the mean distance over both angles, their sum and their difference."""
    looks: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda a: a[:, 0], lambda a: a[:, 1], lambda a: a.sum(1), lambda a: a[:, 0] - a[:, 1],
    )  # fmt: skip
    a, b = angles_of(ours), angles_of(theirs)
    return sum(wasserstein(look(a), look(b)) for look in looks) / len(looks)


def samplers(model: VonMisesMixture, nfe: int, n: int, alphas: list[float]) -> dict[str, Callable[[int], Tensor]]:
    """Return the samplers as functions of the seed."""
    about_mean = {"g": 1.0, "grid": "uniform"}
    return {
        "`fast-ode`": lambda seed: model.sample(n, "fast-ode", nfe, seed=seed).x,
        "`fast-sde`, g = 1": lambda seed: model.sample(n, "fast-sde", nfe, g=1.0, seed=seed).x,
        "`auto`": lambda seed: model.sample(n, "auto", nfe, seed=seed).x,
        "`bfn`: pairs, messages about draws": lambda seed: model.sample(n, "bfn", nfe, seed=seed).x,
        "pairs, messages about the mean": lambda seed: model.sample(n, "multistep:1:s", nfe, seed=seed, **about_mean).x,
        "von Mises, messages about the mean": lambda seed: von_mises_flow(model, n, alphas, False, seed),
        "von Mises, messages about draws": lambda seed: von_mises_flow(model, n, alphas, True, seed),
    }


def ends(model: VonMisesMixture, n: int) -> list[list[str]]:
    """Return the mean angles between samples and the end of the exact flow from the same start."""
    initial = torch.randn(n, *model.data_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = torch.expm1(torch.linspace(0, 1, 400, dtype=torch.float64) * torch.log1p(model.flow.schedule.s(1.0)))
    exact = model.sample(n, "multistep:3:asinh:corrector", initial=initial, grid=model.flow.schedule.time_of_s(s)).x
    rows = []
    for name in ("fast-ode", "bfn-solver++2"):
        cells = []
        for nfe in CALLS:
            x = model.sample(n, name, nfe, initial=initial).x
            apart = 2 * ((x - exact).norm(dim=-1) / 2).clamp(max=1).asin()
            cells.append(str(mean_estimate(apart.mean(1))))
        rows.append([f"`{name}`", *cells])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000, help="samples at a time")
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    header = ["sampler", *(f"{nfe} calls" for nfe in CALLS)]
    lines: list[str] = []
    flow = ContinuousFlow(SIGMA_1)
    alphas = {nfe: concentrations(flow, torch.linspace(0, 1, nfe, dtype=torch.float64)) for nfe in CALLS}
    for name, (centres, spread) in PROBLEMS.items():
        model = VonMisesMixture(torch.tensor(centres), torch.tensor(spread).double(), flow=flow)
        truth = model.sample_data(20 * options.n, torch.Generator().manual_seed(99))
        found: dict[str, list[str]] = {}
        for nfe in CALLS:
            for sampler, draw in samplers(model, nfe, options.n, alphas[nfe]).items():
                errors = [error(draw(seed), truth) for seed in range(options.repeats)]
                found.setdefault(sampler, []).append(str(mean_estimate(errors)))
        generators = (torch.Generator().manual_seed(seed) for seed in range(options.repeats))
        floor = mean_estimate([error(model.sample_data(options.n, each), truth) for each in generators])
        lines += ["", f"## {name.capitalize()}", "", f"Distance to the data, radians; of exact samples {floor}.", ""]
        lines += markdown_table(header, [[sampler, *cells] for sampler, cells in found.items()])
        lines += ["", "Angle between a sample and the end of the exact flow from the same start, radians.", ""]
        lines += markdown_table(header, ends(model, 2000))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
