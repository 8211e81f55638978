"""Measure filling in, particles, fixed noise and guidance, and print tables; "pictures" writes their pictures.

    python benchmarks/conditioning.py [exact particles fixed text images guidance rescale pictures] [--threads N]

The figures of each part are stored in docs/results/conditioning.json, so that parts can be measured separately.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import bfn
from bfn import data
from bfn._utils.estimate import Estimate, mean_estimate, share_estimate
from bfn._utils.files import atomic_write
from bfn.data.loading import as_model_data
from bfn.exact.strings import StringSet
from bfn.quality.comparison import markdown_table
from bfn.quality.features import classify
from bfn.quality.frechet import frechet_estimate
from bfn.quality.judge_choice import features_for
from bfn.quality.metrics import spelling_estimate
from bfn.viz.pictures import sheet, side_by_side, write_picture
from bfn_lab.inception import gather_statistics

ROOT = Path(__file__).parents[1]
STORE = ROOT / "docs" / "results" / "conditioning.json"
SEED = 2026
CALLS = 10
RESCALED = (
    (1, 0, True), (1, 0, False), (1.5, 0, True), (2, 0, False), (2, 0, True), (2, 0.7, False), (2, 0.7, True),
)  # fmt: skip
"""Scale, share of rescaling, and clipping."""
Rows = list[list[str]]


def seeded(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def percent(share: Estimate) -> str:
    return f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def number(figure: Estimate) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


STRINGS = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [2, 1, 0]])
PROBS = torch.tensor([0.35, 0.25, 0.2, 0.15, 0.05], dtype=torch.float64)


def string_model() -> StringSet:
    return StringSet(STRINGS, PROBS, n_classes=3, beta_1=12.0)


def total_variation(x: Tensor, probs: Tensor) -> Estimate:
    """Compare the shares of the strings, and of all others together, with a 95 % bootstrap interval."""
    shares = (x[:, None] == STRINGS).all(-1).double().mean(0)
    shares, exact_ones = torch.cat([shares, 1 - shares.sum(0, True)]).clamp(min=0), torch.cat([probs, torch.zeros(1)])
    drawn = torch.multinomial(shares.expand(1000, -1), len(x), replacement=True, generator=seeded())
    again = torch.stack([(drawn == k).double().mean(1) for k in range(len(shares))], 1)
    distances = (again - exact_ones).abs().sum(1) / 2
    low, high = distances.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(float((shares - exact_ones).abs().sum() / 2), low, high)


def three_digits(figure: Estimate) -> str:
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def exact() -> Iterator[list[str]]:
    """Total variation between filled-in strings and the exact conditional distribution."""
    model, strings = string_model(), STRINGS
    conditional = PROBS * (strings[:, 1] == 1)
    conditional /= conditional.sum()
    n, mask = 20_000, torch.tensor([False, True, False])
    # Expected at most sqrt(k/n)/2; passed by eps with probability at most exp(-2 n eps^2): here 1e-4.
    allowed = (4 / n) ** 0.5 / 2 + (torch.log(torch.tensor(1e4)) / (2 * n)).sqrt().item()
    for solver, calls in (
        ("fast-ode", 100),
        ("bfn-solver2", 100),
        ("fast-sde", 100),
        ("sde-bfn-solver2", 100),
        ("bfn", 300),
    ):
        row = [f"`{solver}`", str(calls)]
        for at in ("data", "path"):
            settings = {"known": torch.ones(3, dtype=torch.int64), "known_mask": mask, "known_at": at}
            x = model.sample(n, solver, calls, generator=seeded(), **settings).x
            shares = (x[:, None] == strings).all(-1).double().mean(0)
            row.append(f"{float((shares - conditional).abs().sum() + 1 - shares.sum()) / 2:.4f}")
        yield [*row, f"{allowed:.4f}"]


def ends_differ(x: Tensor) -> Tensor:
    return x[:, 0] != x[:, 2]


def log_ends_differ(probs: Tensor) -> Tensor:
    return (1 - (probs[:, 0] * probs[:, 2]).sum(-1)).clamp(min=1e-9).log()


def particles() -> Iterator[list[str]]:
    """Conditions on the strings by themselves and with particles."""
    model, calls = string_model(), 30
    known = {"known": torch.ones(3, dtype=torch.int64), "known_mask": torch.tensor([False, True, False])}
    middle, differ = STRINGS[:, 1] == 1, ends_differ(STRINGS)
    for what, g, settings, must, holds in (
        ('the middle is known, `known_at="path"`', 1.0, {**known, "known_at": "path"}, None, middle),
        ('the middle is known, `known_at="data"`', 1.0, known, None, middle),
        ("`steer`: the ends differ", 1.0, {"steer": log_ends_differ}, None, differ),
        ("`must`: the ends differ", 1.0, {}, ends_differ, differ),
        ('the middle is known, `known_at="path"`', 10.0, {**known, "known_at": "path"}, None, middle),
    ):
        conditional = PROBS * holds / (PROBS * holds).sum()
        plain = model.sample(20_000, "fast-sde", calls, g=g, generator=seeded(), **settings).x
        row = [what, f"{g:g}", three_digits(total_variation(plain, conditional))]
        for count in (8, 64):
            # With 8 particles none may hold.
            if must is not None and count == 8:
                row.append("")
                continue
            group = bfn.Particles(count, must=must)
            out = model.sample(2000, "fast-sde", calls, g=g, particles=group, generator=seeded(), **settings)
            row.append(three_digits(total_variation(out.x, conditional)))
        size, z = out.effective_sample_size.min(1).values.mean(), out.log_normaliser.exp()
        likely = mean_estimate(z)
        yield [*row, f"{float(size):.1f}", three_digits(likely), f"{float((PROBS * holds).sum()):.2f}"]


def fixed() -> Iterator[list[str]]:
    """The same noise at every row: how far samples move with the number of calls, and where they end."""
    model, n = string_model(), 20_000
    normal = bfn.exact.GaussianMixture(torch.zeros(1, 1, dtype=torch.float64), stds=torch.tensor([0.5]))
    for solver, g in (("fast-sde", 1.0), ("fast-sde", 10.0), ("fast-ode", None)):
        for noise in ("fresh", "fixed"):
            few, many = (model.sample(n, solver, c, g=g, noise=noise, generator=seeded()).x for c in (50, 200))
            same = share_estimate(int((few == many).all(1).sum()), n)
            x = normal.sample(n, solver, 200, g=g, noise=noise, generator=seeded()).x
            dial = "" if g is None else f"{g:g}"
            far = three_digits(total_variation(many, PROBS))
            yield [f"`{solver}`", dial, noise, percent(same), far, f"{float(x.std() / 0.5):.2f}"]


def text() -> Iterator[list[str]]:
    """Held-out text with characters left out: how many come back, and how many words are words."""
    model, alphabet = bfn.load("text8-plain"), data.TEXT8
    n, length = 96, model.data_shape[0]
    x = data.load("text8", "test").windows(n, length, seeded())
    generator = seeded(1)
    spans = torch.ones(n, length, dtype=torch.bool)
    for row in spans:
        for first in (torch.randint(24, (4,), generator=generator) + 32 * torch.arange(4)).tolist():
            row[first : first + 8] = False
    masks = {
        "every other one, at random": torch.rand(n, length, generator=generator) < 0.5,
        "four spans of 8": spans,
        "the second half": (torch.arange(length) < length // 2).expand(n, length),
    }
    yield ["nothing", "", "", "", percent(spelling_estimate(alphabet.decode(x)))]
    for what, mask in masks.items():
        for at in ("data", "path"):
            out = model.sample(n, "auto", CALLS, known=x, known_mask=mask, known_at=at, seed=SEED).x
            recovered = ((out == x) & ~mask).sum(1) / (~mask).sum(1)
            spelling = spelling_estimate(alphabet.decode(out))
            yield [what, "`auto`", at, percent(mean_estimate(recovered)), percent(spelling)]


def test_images(model: bfn.BFN) -> tuple[Tensor, Tensor]:
    """MNIST's test images as the model takes them, and their labels."""
    images = data.load("mnist", "test")
    return as_model_data(model, images), images.labels


def judged(model: bfn.BFN, x: Tensor, label: Tensor, real: Tensor) -> list[str]:
    """Share of samples that the classifier takes for their class, and their Frechet distance from real data."""
    shown, features = model.flow.values(x), features_for("mnist")
    right = int((classify(shown).argmax(-1) == label).sum())
    reference = gather_statistics([model.flow.values(real)], features)
    with torch.no_grad():
        distance = frechet_estimate(features(shown), reference, generator=seeded())
    return [percent(share_estimate(right, len(x))), number(distance)]


def images() -> Iterator[list[str]]:
    """Test images of which a part is known: whether the digit comes back, and the distance from real ones."""
    n, top = 200, torch.zeros(1, 28, 28, dtype=torch.bool)
    top[:, :14] = True
    masks = {"top half": top, "a fifth of the pixels": torch.rand(1, 28, 28, generator=seeded()) < 0.2}
    for name in ("mnist", "mnist-binary"):
        model = bfn.load(name)
        every, labels = test_images(model)
        order = torch.randperm(len(every), generator=seeded())
        x, y = every[order[:n]], labels[order[:n]]
        for what, mask in masks.items():
            for at in ("data", "path"):
                out = model.sample(n, "auto", CALLS, known=x, known_mask=mask, known_at=at, label=-1, seed=SEED).x
                yield [name, what, at, *judged(model, out, y, every[order[n:]])]


def asked(name: str, n: int, seed: int = SEED, **settings: object) -> list[str]:
    """Judge samples of all classes in turn."""
    model = bfn.load(name)
    label, generator = model.info.classes.in_turn(n), seeded(seed)
    some = [
        model.sample(100, "auto", CALLS, label=part, generator=generator, **settings).x for part in label.split(100)
    ]
    return judged(model, torch.cat(some), label, test_images(model)[0])


def guidance() -> Iterator[list[str]]:
    """Samples of all classes in turn at several scales."""
    for name, n, scales in (("mnist", 1000, (1.0, 2.0)), ("mnist-binary", 300, (1.0, 2.0))):
        for scale in scales:
            yield [name, f"{scale:g}", str(n), *asked(name, n, guidance=scale)]


def rescale() -> Iterator[list[str]]:
    """Scales, and what keeps the guided prediction in range."""
    for scale, share, clip in RESCALED:
        row = asked("mnist", 400, seed=5, guidance=bfn.Guidance(scale, share), clip=None if clip else False)
        yield [f"{scale:g}", f"{share:g}", "yes" if clip else "no", *row]


def pictures() -> Iterator[list[str]]:
    """Write pictures of filled-in test images, and of guided samples at several scales."""
    model = bfn.load("mnist")
    every, _ = test_images(model)
    x = every[torch.randperm(len(every), generator=seeded(3))[:10]]
    left = torch.zeros(1, 28, 28, dtype=torch.bool)
    left[..., :14] = True
    rows = [x, torch.where(left, x, -0.5)]
    for seed in (4, 5, 6):
        rows.append(model.sample(10, "auto", CALLS, known=x, known_mask=left, label=-1, seed=seed).x)
    folder = ROOT / "docs" / "images"
    write_picture(folder / "infill-mnist.png", sheet(torch.cat(rows), columns=10))
    parts = []
    for scale in (1.0, 2.0, 4.0):
        label = torch.arange(10).repeat_interleave(4)
        y = model.sample(40, "auto", CALLS, label=label, guidance=scale, seed=SEED).x
        parts.append((f"scale {scale:g}", sheet(y, columns=8)))
    write_picture(folder / "guidance-mnist.png", side_by_side(parts, "classifier-free guidance, 10 calls"))
    yield ["infill-mnist.png", "guidance-mnist.png"]


PARTS: dict[str, tuple[Callable[[], Iterator[list[str]]], tuple[str, ...]]] = {
    "exact": (exact, ("solver", "calls", 'known_at="data"', 'known_at="path"', "allowed")),
    "particles": (
        particles,
        ("condition", "g", "without", "8 particles", "64 particles", "effective", "probability", "exact"),
    ),
    "fixed": (fixed, ("solver", "g", "noise", "same string", "total variation", "standard deviation")),
    "text": (text, ("left out", "solver", "known_at", "recovered", "spelling")),
    "images": (images, ("model", "known", "known_at", "digit", "Frechet distance")),
    "guidance": (guidance, ("model", "scale", "samples", "of the asked class", "Frechet distance")),
    "rescale": (rescale, ("scale", "rescale", "clip", "of the asked class", "Frechet distance")),
    "pictures": (pictures, ()),
}
"""Functions that measure, and headers of their tables."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"parts {sorted(unknown)}: expected any of {', '.join(PARTS)}")
    torch.set_num_threads(options.threads)
    for name in options.parts:
        rows: Rows = []
        for row in PARTS[name][0]():
            rows.append(row)
            stored = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
            atomic_write(STORE, json.dumps({**stored, name: rows}, indent=1, ensure_ascii=False) + "\n")
        if PARTS[name][1]:
            print("\n".join([f"## {name}", "", *markdown_table(PARTS[name][1], rows), ""]), flush=True)


if __name__ == "__main__":
    main()
