"""Measure the few-step error of ODE solvers on problems whose flow is known exactly, and print tables.

    python benchmarks/exact_problems.py --seed 7 --n 40

The error is the mean distance between a solver's sample and the end of the exact flow from the same start, in float64;
the end is computed with order 4 and 400 calls. The paper's solvers have their better t_start. ``fast-ode`` was tuned on
the problems of seeds 0 and 1; all other seeds test it. ``--real`` adds the exact models of MNIST and text8 (float32).
"""

import argparse
from collections.abc import Callable, Iterable
from math import exp, log, pi
from typing import Any

import torch
from torch import Tensor

from bfn import data, solvers
from bfn.core.model import Model
from bfn.core.solver import Solver
from bfn.exact.numbers import GaussianMixture, Points
from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, StringSet
from bfn.quality.comparison import markdown_table
from bfn.solvers.multistep import Multistep
from bfn.solvers.paper import Midpoint

PAPER = {
    "continuous": ("bfn-solver1", "bfn-solver++1", "bfn-solver++2"),
    "discrete": ("bfn-solver1", "bfn-solver2", "bfn-solver2-singlestep"),
}
STARTS = {"continuous": (1e-2, 1e-3, 1e-4, 1e-5), "discrete": (1e-1, 1e-2, 1e-3)}
CALLS = (5, 8, 10, 15, 20)

Problem = tuple[str, Callable[[torch.Generator], Model]]


def mixture(dimensions: int, components: int, spread: float, stds: tuple[float, float]) -> Problem:
    """Make a problem with normal components whose standard deviations are log-uniform between two values."""

    def make(generator: torch.Generator) -> Model:
        means = spread * torch.randn(components, dimensions, generator=generator, dtype=torch.float64)
        share = torch.rand(components, generator=generator, dtype=torch.float64)
        low, high = torch.tensor(stds, dtype=torch.float64).log()
        scales = torch.exp(torch.lerp(low, high, share))
        return GaussianMixture(means, stds=scales, weights=dirichlet(components, 2.0, generator))

    return f"{components} normals in {dimensions} dimensions, std {stds[0]:g} to {stds[1]:g}", make


def digits(n: int, bandwidth: float) -> Problem:
    """Make a problem of some of the 8 x 8 digits, each a narrow normal distribution."""

    def make(generator: torch.Generator) -> Model:
        images = data.load("digits", "all").to_float().double()
        return Points(images[torch.randperm(len(images), generator=generator)[:n]], bandwidth)

    return f"{n} digits of 8 x 8, std {bandwidth:g}", make


def strings(n: int, length: int, n_classes: int, beta_1: float) -> Problem:
    """Random strings of unequal weight."""

    def make(generator: torch.Generator) -> Model:
        x = torch.randint(n_classes, (n, length), generator=generator)
        return StringSet(x, dirichlet(n, 1.0, generator), n_classes=n_classes, beta_1=beta_1)

    return f"{n} strings of {length} over {n_classes} classes, beta_1 {beta_1:g}", make


def chain(length: int, n_classes: int, beta_1: float) -> Problem:
    """A random Markov chain that likes few successors."""

    def make(generator: torch.Generator) -> Model:
        rows = torch.stack([dirichlet(n_classes, 0.3, generator) for _ in range(n_classes)])
        return MarkovChain(dirichlet(n_classes, 1.0, generator), rows, length, beta_1=beta_1)

    return f"Markov chain of {length} over {n_classes} classes, beta_1 {beta_1:g}", make


def products(components: int, length: int, n_classes: int, beta_1: float) -> Problem:
    """A mixture of strings of independent variables."""

    def make(generator: torch.Generator) -> Model:
        count = components * length
        probs = torch.stack([dirichlet(n_classes, 0.2, generator) for _ in range(count)])
        return MixtureOfProducts(
            dirichlet(components, 2.0, generator), probs.view(components, length, n_classes), beta_1=beta_1
        )

    return f"{components} products of {length} over {n_classes} classes, beta_1 {beta_1:g}", make


def dirichlet(n: int, concentration: float, generator: torch.Generator) -> Tensor:
    """(n,) random weights."""
    gamma = torch._standard_gamma(torch.full((n,), concentration, dtype=torch.float64), generator=generator)
    return gamma.clamp(min=1e-12) / gamma.clamp(min=1e-12).sum()


PROBLEMS: dict[str, tuple[Problem, ...]] = {
    "continuous": (
        mixture(1, 3, 0.7, (0.05, 0.3)),
        mixture(2, 8, 0.7, (0.05, 0.2)),
        mixture(8, 5, 0.5, (0.1, 0.5)),
        mixture(32, 20, 0.5, (0.02, 0.2)),
        mixture(100, 10, 0.3, (0.2, 0.4)),
        digits(300, 0.1),
        digits(1000, 0.02),
    ),
    "discrete": (
        strings(20, 6, 5, 0.4),
        strings(100, 16, 27, 0.06),
        chain(12, 8, 1.5),
        chain(32, 4, 3.0),
        products(8, 32, 2, 5.0),
        products(5, 10, 27, 0.75),
    ),
}


def run(model: Model, initial: Tensor, solver: str | Solver, nfe: int | None, **settings: Any) -> Tensor:
    """Return the final predictions: values of continuous data, class probabilities of discrete data."""
    return model.sample(len(initial), solver, nfe, initial=initial, **settings).final


def flow_end(model: Model, initial: Tensor) -> Tensor:
    """The end of the exact flow from s = 0, found on a grid that is fine everywhere."""
    kind = model.flow.kind
    solver = Multistep("reference", "", (kind,), 4, coordinate="asinh" if kind == "continuous" else "s", corrector=True)
    share = torch.linspace(0, 1, 400, dtype=torch.float64)
    last = float(model.flow.schedule.s(1.0))
    # Small first steps: they are of low order. Then even in log(1 + s/d), or in s.
    ramp = share - torch.sin(pi * share) / pi * 0.95
    s = torch.expm1(ramp * torch.log1p(torch.tensor(2 * last))) / 2 if kind == "continuous" else ramp * last
    return run(model, initial, solver, None, grid=model.flow.schedule.time_of_s(s).clamp(0, 1))


def distance(a: Tensor, b: Tensor) -> float:
    """Mean Euclidean distance of two batches."""
    return float((a - b).flatten(1).norm(dim=1).mean())


def paper_best(model: Model, initial: Tensor, end: Tensor, nfe: int) -> tuple[float, str]:
    """Error and name of the paper's best ODE solver with that many calls, each at its best start."""
    kind = model.flow.kind
    errors = {}
    for name in PAPER[kind]:
        if not (isinstance(solvers.get(name), Midpoint) and nfe % 2):  # it makes two calls a step
            errors[name] = min(
                distance(run(model, initial, name, nfe, t_start=t_start), end) for t_start in STARTS[kind]
            )
    best = min(errors, key=errors.__getitem__)
    return errors[best], best


def geometric_mean(values: Iterable[float]) -> float:
    """Return the exponential of the mean logarithm."""
    logs = [log(v) for v in values]
    return exp(sum(logs) / len(logs))


def measure(kind: str, seed: int, n: int, solver: str | Solver = "fast-ode") -> list[dict[str, Any]]:
    """Return the errors on every problem of a kind, one row for each problem and number of calls."""
    rows = []
    for index, (name, make) in enumerate(PROBLEMS[kind]):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        model = make(generator)
        shape = model.flow.state_shape(model.data_shape)
        initial = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
        end = flow_end(model, initial)
        for nfe in CALLS:
            ours = distance(run(model, initial, solver, nfe), end)
            theirs, best = paper_best(model, initial, end, nfe)
            rows.append({"problem": name, "nfe": nfe, "ours": ours, "paper": theirs, "best": best})
    return rows


def measure_real(n: int) -> list[str]:
    """Return a table of fast-ode at 10 calls and the paper's best ODE solver at 10 and 20, on models of real data."""
    images, text = data.load("mnist", "train").to_float(), data.load("text8").to_classes()
    models: dict[str, Model] = {
        f"{len(images):,} images of MNIST, std 0.1": Points(images, 0.1, dtype=torch.float32),
        "text8 by contexts of 2 symbols, length 64": NGram.from_text(text, 2, 64, dtype=torch.float32),
    }
    lines = ["", "## Exact models of real data", ""]
    rows = []
    for name, model in models.items():
        shape = model.flow.state_shape(model.data_shape)
        initial = torch.randn(n, *shape, generator=torch.Generator().manual_seed(7))
        end = run(model, initial, "fast-ode", 100)
        ours = distance(run(model, initial, "fast-ode", 10), end)
        cells = [f"{error:.3g} ({best})" for error, best in (paper_best(model, initial, end, nfe) for nfe in (10, 20))]
        rows.append([name, f"{ours:.3g}", *cells])
    header = ["model", "fast-ode at 10 calls", "paper's best at 10", "paper's best at 20"]
    return [*lines, *markdown_table(header, rows)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[7])
    parser.add_argument("--n", type=int, default=200, help="starts a problem")
    parser.add_argument("--solver", default="fast-ode")
    parser.add_argument("--kinds", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS), help="none with no name")
    parser.add_argument("--real", action="store_true", help="also on MNIST and text8")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []
    for kind in options.kinds:
        rows = [row for seed in options.seed for row in measure(kind, seed, options.n, options.solver)]
        lines += ["", f"## {kind.capitalize()} data, {len(rows) // len(CALLS)} problems", ""]
        lines += ["| calls | geometric mean | best | worst |", "|---|---|---|---|"]
        for nfe in CALLS:
            ratios = [row["ours"] / row["paper"] for row in rows if row["nfe"] == nfe]
            lines.append(f"| {nfe} | {geometric_mean(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")
        lines += ["", f"| problem | calls | paper's best | its error | {options.solver} | ratio |", "|---" * 6 + "|"]
        lines += [
            f"| {row['problem']} | {row['nfe']} | {row['best']} | {row['paper']:.2e} | {row['ours']:.2e} | "
            f"{row['ours'] / row['paper']:.3f} |"
            for row in rows
        ]
    if options.real:
        lines += measure_real(options.n)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
