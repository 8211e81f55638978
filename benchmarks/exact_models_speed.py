"""Time and peak memory of the exact models that carry real data.

    python benchmarks/exact_models_speed.py [points 1 2 3 4 5] [--characters N] [--min-count N] [--threads N]

Points: 60,000 x 784 and a batch of 500, float32. NGram: contexts 1 to 5 on text8 or its first characters, a batch of
64, lengths 64 and 128, float32. Each case runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import resource
import subprocess
import sys
import time
from functools import partial

import torch

CASES = ("points", "1", "2", "3", "4", "5")


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(call) -> str:
    """Wall and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return f"{time.perf_counter() - wall:8.2f} s wall {time.process_time() - cpu:8.2f} s cpu"


def points() -> None:
    from bfn.exact.numbers import Points

    generator = torch.Generator().manual_seed(0)
    # Blurred noise with about the norms of digits; times and memory do not depend on the values.
    images = torch.rand(60_000, 784, generator=generator).mul_(2).sub_(1)
    before = peak_gb()
    model = Points(images, bandwidth=0.1, dtype=torch.float32)
    for t in (0.1, 0.9):
        level = model.flow.noise_level(t, 500, 1, like=images)
        u = model.flow.noised(images[:500], level.s, torch.randn(500, 784, generator=generator))
        print(f"Points 60000x784, batch 500, t={t}: {timed(partial(model.output, u, level))}", end="")
        print(f"  peak {peak_gb():.2f} GB, of it {before:.2f} before the model")


def n_gram(context: int, characters: int | None, min_count: int) -> None:
    from bfn import data
    from bfn.exact.strings import NGram

    text = data.load("text8")
    text = text.to_classes() if characters is None else text[:characters].to_classes()
    before = peak_gb()
    start = time.perf_counter()
    model = NGram.from_text(text, context, 64, dtype=torch.float32, min_count=min_count)
    build, loaded = time.perf_counter() - start, peak_gb()
    print(
        f"NGram context {context}: {len(text):,} characters, built in {build:.1f} s, "
        f"{model.automaton.n_states:,} states"
    )
    for length in (64, 128):
        model = NGram(model.backoff, length, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        x = model.sample_data(64, generator)
        level = model.flow.noise_level(0.5, 64, 2, like=torch.zeros(()))
        u = model.flow.noised(x, level.s, torch.randn(64, length, 27, generator=generator))
        print(f"    batch 64, length {length}: {timed(partial(model.output, u, level))}", end="")
        print(f"  peak {peak_gb():.2f} GB ({before:.2f} with the text alone, {loaded:.2f} after counting)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, help=f"any of {', '.join(CASES)}")
    parser.add_argument("--characters", type=int, help="use only so many characters of the text")
    parser.add_argument("--min-count", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args()
    unknown = set(settings.cases) - set(CASES)
    if unknown:
        parser.error(f"cases {sorted(unknown)}: expected any of {', '.join(CASES)}")
    if len(settings.cases) > 1:
        options = [f"--threads={settings.threads}", f"--min-count={settings.min_count}"]
        options += [f"--characters={settings.characters}"] if settings.characters else []
        for case in settings.cases:
            subprocess.run([sys.executable, __file__, case, *options], check=True)
        return
    torch.set_num_threads(settings.threads)
    with torch.no_grad():
        if settings.cases[0] == "points":
            points()
        else:
            n_gram(int(settings.cases[0]), settings.characters, settings.min_count)


if __name__ == "__main__":
    main()
