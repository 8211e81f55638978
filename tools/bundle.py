"""Measure a trained run and put it into the package: weights in float16, and a card with what was measured.

    python tools/bundle.py mnist ~/runs/mnist

Text: spelling accuracy and 4-gram divergence at 10 and 100 calls. Images of 28 x 28 digits: share recognised by the
bundled classifier, and the Frechet distance on its features, at 10 and 50 calls. Digits of 8 x 8: share of the asked
class by nearest neighbours. All for the default solver, the original sampler and the paper's best for the kind of data.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bfn
from bfn import data, metrics, storage
from bfn.sampling import batches
from bfn.training import read_log

BUNDLED = Path(bfn.__file__).parent / "bundled"
PAPER = {"discrete": {"solver": "bfn-solver2"}, "continuous": {"solver": "sde-bfn-solver++2", "t_start": 1e-3}}
SEED = 1234


def draw(model: bfn.BFN, n: int, nfe: int, n_labels: int, settings: dict[str, Any], size: int = 100) -> Tensor:
    """n samples in batches, all classes in turn."""
    generator = torch.Generator().manual_seed(SEED)
    clip = (-1, 1) if model.flow.kind == "continuous" else None
    parts, done = [], 0
    for count in batches(n, size):
        label = (torch.arange(count) + done) % n_labels if n_labels else None
        parts.append(model.sample(count, nfe=nfe, label=label, clip=clip, generator=generator, **settings).x)
        done += count
    return torch.cat(parts)


def judge_text(model: bfn.BFN, alphabet: str) -> Callable[[Tensor], dict[str, Any]]:
    """Spelling and 4-grams against held-out text."""
    text = data.load("text8", "test")
    reference = text.alphabet.decode(text.tiles(model.data_shape[0], 6000))

    def judge(x: Tensor) -> dict[str, Any]:
        report = metrics.text_report(data.Alphabet(alphabet).decode(x), reference)
        ours, real = report.samples, report.real
        return {
            "spelling": f"{100 * ours.spelling.accuracy:.1f} ± {100 * ours.spelling.standard_error:.1f} % "
            f"(real text {100 * real.spelling.accuracy:.1f} %)",
            "4-gram divergence": f"{ours.ngram_divergence:.3f} (real text {real.ngram_divergence:.3f})",
        }

    return judge


def judge_mnist(levels: int | None) -> Callable[[Tensor], dict[str, Any]]:
    """The bundled classifier's verdict, and the Frechet distance on its features."""
    test = data.load("mnist", "test")
    real = test.to_float() if levels is None else test.binarise(0).to_classes() * 2.0 - 1
    reference = metrics.FeatureStatistics.of(metrics.extract(real, metrics.mnist_features()))

    def judge(x: Tensor) -> dict[str, Any]:
        images = x if levels is None else x * 2.0 - 1
        report = metrics.digit_report(metrics.classify(images))
        features = metrics.extract(images, metrics.mnist_features())
        low, high = report.confident_interval.low, report.confident_interval.high
        return {
            "recognised with confidence above 0.9": f"{100 * report.confident_share:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}]",
            "Frechet distance": f"{metrics.frechet_distance(features, reference):.2f}",
            "class entropy": f"{report.class_entropy:.2f} of {math.log2(10):.2f} bits",
        }

    return judge


def judge_digits() -> Callable[[Tensor], dict[str, Any]]:
    """Share of samples in whose class the nearest real digits lie; samples come in order of class."""
    from sklearn.neighbors import KNeighborsClassifier

    real = data.load("digits", "all")
    pixels = real.to_float().flatten(1)
    nearest = KNeighborsClassifier(5).fit(pixels.numpy(), real.labels.numpy())

    def judge(x: Tensor) -> dict[str, Any]:
        asked = torch.arange(len(x)) % 10
        right = int((torch.from_numpy(nearest.predict(x.flatten(1).numpy())) == asked).sum())
        interval = metrics.wilson_interval(right, len(x))
        low, high = 100 * interval.low, 100 * interval.high
        return {
            "asked class recognised": f"{100 * right / len(x):.1f} % [{low:.1f}, {high:.1f}]",
            "Frechet distance of pixels": f"{metrics.frechet_distance(x.flatten(1), pixels):.2f}",
        }

    return judge


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--n", type=int, default=500, help="samples at few calls; a fourth of it at many (text)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nfe", type=int, nargs="+", help="numbers of calls to measure at")
    parser.add_argument("--note", help="what a reader of the card should know of the run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    model, config = bfn.load(options.run), storage.read_config(options.run)
    alphabet = config["alphabet"]
    if alphabet:
        judge, calls = judge_text(model, alphabet), (10, 100)
    elif model.data_shape == (1, 28, 28):
        judge, calls = judge_mnist(getattr(model.flow, "n_classes", None)), (10, 50)
    else:
        judge, calls = judge_digits(), (10, 50)
    quality: dict[str, str] = {}
    measured: list[dict[str, Any]] = []
    for nfe in options.nfe or calls:
        n = options.n // 4 if alphabet and nfe > 50 else options.n
        for settings in ({"solver": "auto"}, {"solver": "bfn"}, PAPER[model.flow.kind]):
            verdict = judge(draw(model, n, nfe, config["n_labels"], settings))
            measured.append({**settings, "nfe": nfe, "samples": n, **verdict})
            print(measured[-1], flush=True)
            if settings["solver"] == "auto":
                quality |= {f"{what} at {nfe} calls": value for what, value in verdict.items()}
    card = config["card"]
    evaluated = [entry for entry in read_log(options.run) if entry["kind"] == "eval"]
    card["held-out bits a dimension"] = {k: v for k, v in evaluated[-1].items() if k.endswith(("bits", "error"))}
    card["quality"], card["measured"] = quality, measured
    card["seed of the samples"] = SEED
    if options.note:
        card["note"] = options.note
    card["parameters"] = sum(p.numel() for p in model.parameters())
    extras = {"n_labels": config["n_labels"], "alphabet": alphabet, "card": card}
    folder = model.save(BUNDLED / options.name, extras, dtype="float16")
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
