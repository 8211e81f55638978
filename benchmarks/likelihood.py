"""Measure likelihoods against exact densities, and on the bundled models, and print tables.

    python benchmarks/likelihood.py [mixtures receiver strings digits mnist text8-plain mnist-binary] [--store FILE]

Each part is stored (as JSON) as soon as it is measured, and not measured again unless it is named. All seeds are fixed.
Takes about 8 minutes on one core.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bfn
from bfn._utils import files
from bfn.data.loading import read_model_data
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.likelihood.bits import Likelihood
from bfn.likelihood.bounds import receiver_variance
from bfn.quality.comparison import markdown_table

ROOT = Path(__file__).parents[1]
MIXTURES = ((1, 3, 0.1), (2, 5, 0.15), (2, 8, 0.05), (5, 6, 0.2), (10, 4, 0.1))
"""Dimensions, components, their standard deviation; means uniform in [-1, 1]."""

Row = list[str]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mixture(dims: int, components: int, std: float, generator: torch.Generator) -> GaussianMixture:
    means = torch.rand(components, dims, generator=generator, dtype=torch.float64) * 2 - 1
    return GaussianMixture(means, stds=torch.full((components,), std))


def mixtures() -> list[Row]:
    """Return the mean and the largest error of log p over 200 samples."""
    generator = seeded(2024)
    rows = []
    for dims, components, std in MIXTURES:
        model = mixture(dims, components, std, generator)
        x = model.sample_data(200, generator)
        row = [f"{dims}, {components}, {std:g}"]
        for settings in ({"nfe": 50}, {"nfe": 100}, {"nfe": 200}, {"tolerance": 1e-2}, {"tolerance": 1e-4}):
            result = model.log_likelihood(x, **settings)
            error = (result.log_prob - model.log_prob(x)).abs()
            calls = "" if "nfe" in settings else f" ({result.nfe.double().mean():.0f} calls)"
            row.append(f"{error.mean():.1e} / {error.max():.1e}{calls}")
        rows.append(row)
    return rows


def receiver() -> list[Row]:
    """Excess of the n-step bounds over the exact information I(x; u(1)), 4000 samples, variance from 4000 others."""
    generator = seeded(7)
    model = mixture(2, 5, 0.15, generator)
    x, others = model.sample_data(4000, generator), model.sample_data(4000, generator)
    eps = torch.randn(20, 4000, 2, generator=generator, dtype=torch.float64)
    level = model.flow.noise_level(1.0, 4000, 1, like=x)
    states = [model.flow.noised(x, level.s, noise) for noise in eps]
    exact = torch.stack([model.log_sender(u, x, level) - model.log_evidence(u, level) for u in states]).mean(0)
    rows = []
    for steps in (5, 10, 20, 50):
        variance = receiver_variance(model, others, steps, generator=seeded(1))
        row = [str(steps)]
        excess = []
        for chosen in (None, variance):
            result = model.log_likelihood(x, "n-step", steps + 1, variance=chosen, generator=seeded(2))
            assert result.reconstruction is not None
            # The same samples on both sides; the exact information's own noise is averaged over 20 states.
            difference = -result.log_prob - result.reconstruction - exact
            excess.append(float(difference.mean()))
            row.append(f"{excess[-1]:.3f} ± {float(difference.std()) / math.sqrt(len(x)):.3f}")
        rows.append([*row, f"{excess[0] / excess[1]:.1f}"])
    return rows


def string_set() -> StringSet:
    generator = seeded(0)
    words = torch.randint(0, 4, (12, 6), generator=generator)
    return StringSet(
        words,
        n_classes=4,
        beta_1=4.0,
        weights=torch.softmax(torch.randn(12, generator=generator, dtype=torch.float64), 0),
    )


def strings() -> list[Row]:
    """log p - exact for 100 repeats of 6 strings: mean and standard deviation of one estimate."""
    model = string_set()
    x = model.strings[:6].repeat(100, 1)
    rows = []
    for calls in (10, 20, 40):
        row = [str(calls)]
        for settings in (
            {"method": "bound", "nfe": calls},
            {"nfe": calls, "divergence": "hutchinson"},
            {"nfe": calls, "divergence": "hutchinson", "probes": 8},
            {"nfe": calls, "divergence": "exact"},
        ):
            error = model.log_likelihood(x, generator=seeded(1), **settings).log_prob - model.log_prob(x)
            row.append(f"{error.mean():+.4f}, {error.std():.4f}")
        rows.append(row)
    return rows


def on_model(name: str, n: int, rows: dict[str, dict[str, Any]]) -> list[Row]:
    """Nats a sample and bits a dimension of held-out data, each set of settings on its first ``n`` samples."""
    model = bfn.load(name)
    held_out = read_model_data(model, n=2 * n)

    def part(first: int, last: int) -> dict[str, Any]:
        label = held_out.label
        return {"x": held_out.x[first:last], "label": None if label is None else label[first:last]}

    table = []
    for what, row in rows.items():
        settings = dict(row)
        count = settings.pop("n", n)
        if settings.pop("best_variance", False):
            settings["variance"] = receiver_variance(
                model, **part(n, 2 * n), n_steps=settings["nfe"] - 1, generator=seeded(5)
            )
        result = model.log_likelihood(**part(0, count), generator=seeded(3), **settings)
        table.append([what, str(count), f"{result.nfe.double().mean():.0f}", *figures(result)])
        print(table[-1], flush=True)
    return table


def figures(result: Likelihood) -> Row:
    own = result.error[~result.error.isnan()]
    return [
        f"{result.nats.value:.1f} ({result.nats.low:.1f} to {result.nats.high:.1f})",
        f"{float(own.mean()):.2g}" if len(own) else "",
        *(
            f"{part.value:.3f} ({part.low:.3f} to {part.high:.3f})" if part else ""
            for part in (result.parts.get(key) for key in ("transmission", "reconstruction", "total"))
        ),
    ]


def digits() -> list[Row]:
    images: dict[str, dict[str, Any]] = {
        "continuous-time bound": {"method": "bound", "nfe": 100},
        "n-step bound, 10 steps": {"method": "n-step", "nfe": 11},
        "n-step bound, 10 steps, best variance": {"method": "n-step", "nfe": 11, "best_variance": True},
        "n-step bound, 50 steps": {"method": "n-step", "nfe": 51},
        "n-step bound, 50 steps, best variance": {"method": "n-step", "nfe": 51, "best_variance": True},
        "ODE, density": {"nfe": 50, "divergence": "hutchinson", "probes": 2},
        "ODE, density, first 8": {"nfe": 50, "divergence": "hutchinson", "probes": 2, "n": 8},
        "ODE, density, first 8, exact divergence": {"nfe": 50, "divergence": "exact", "n": 8},
        "ODE, density, first 8, tolerance 0.1": {
            "tolerance": 0.1, "divergence": "hutchinson", "probes": 2, "n": 8,
        },
        "ODE, 17 grey levels, uniform": {"nfe": 50, "divergence": "hutchinson", "levels": 17, "probes": 2},
        "ODE, 17 grey levels, noise": {
            "nfe": 50, "divergence": "hutchinson", "levels": 17, "dequantise": "noise", "probes": 2,
        },
    }  # fmt: skip
    return on_model("digits", 45, images)


def mnist() -> list[Row]:
    noise = {"nfe": 40, "levels": 256, "dequantise": "noise", "probes": 2}
    return on_model(
        "mnist",
        16,
        {
            "continuous-time bound": {"method": "bound", "nfe": 100},
            "n-step bound, 10 steps": {"method": "n-step", "nfe": 11},
            "n-step bound, 10 steps, best variance": {"method": "n-step", "nfe": 11, "best_variance": True},
            "ODE, density": {"nfe": 40, "probes": 2},
            "ODE, 256 grey levels, uniform": {"nfe": 40, "levels": 256, "probes": 2},
            "ODE, 256 grey levels, noise": noise,
            "ODE, 256 grey levels, noise, first 4, 4 draws": {**noise, "n": 4, "importance": 4},
        },
    )


def text8_plain() -> list[Row]:
    return on_model(
        "text8-plain",
        16,
        {
            "continuous-time bound": {"method": "bound", "nfe": 40},
            "n-step bound, 39 steps": {"method": "n-step", "nfe": 40},
            "ODE bound": {"nfe": 20, "probes": 2},
            "ODE bound, first 8, 40 calls": {"nfe": 40, "probes": 2, "n": 8},
            "ODE bound, first 4, 4 draws": {"nfe": 20, "probes": 2, "n": 4, "importance": 4},
        },
    )


def mnist_binary() -> list[Row]:
    return on_model(
        "mnist-binary",
        24,
        {
            "continuous-time bound": {"method": "bound", "nfe": 40},
            "n-step bound, 39 steps": {"method": "n-step", "nfe": 40},
            "ODE bound": {"nfe": 20, "probes": 2},
            "ODE bound, first 8, 40 calls": {"nfe": 40, "probes": 2, "n": 8},
        },
    )


MODEL_HEADER = ["bound", "samples", "calls", "nats per sample", "own error", "transmission", "reconstruction", "total"]
PARTS: dict[str, tuple[Callable[[], list[Row]], list[str]]] = {
    "mixtures": (
        mixtures,
        ["dimensions, components, std", "50 calls", "100 calls", "200 calls", "tolerance 0.01", "tolerance 0.0001"],
    ),
    "receiver": (receiver, ["steps", "usual", "best variance", "ratio"]),
    "strings": (strings, ["calls", "continuous-time bound", "ODE bound, 1 probe", "8 probes", "exact divergence"]),
    "digits": (digits, MODEL_HEADER),
    "mnist": (mnist, MODEL_HEADER),
    "text8-plain": (text8_plain, MODEL_HEADER),
    "mnist-binary": (mnist_binary, MODEL_HEADER),
}
"""Functions that measure, and headers of their tables."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure again")
    parser.add_argument("--store", type=Path, default=ROOT / "runs" / "likelihood.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = json.loads(options.store.read_text()) if options.store.exists() else {}
    for name, (measure, _) in PARTS.items():
        if name not in store or name in options.parts:
            store[name] = measure()
            files.atomic_write(options.store, json.dumps(store, indent=1))
    for name, (_, header) in PARTS.items():
        print("\n".join([f"## {name}", "", *markdown_table(header, store[name]), ""]))


if __name__ == "__main__":
    main()
