"""Training steps against the plain sum of forward, backward and optimiser step, timed in turn within one run.

python benchmarks/training_throughput.py [RECIPE] [--steps 10]
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from accelerate import Accelerator

from bfn.training import recipe
from bfn.training.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="text8")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        settings = recipe(options.recipe).override({"threads": 1, "tensorboard": False})
        trainer = Trainer(settings, Path(folder), Accelerator(cpu=True), progress=False)
        x, label, t, factor, eps = trainer.batch(0)

        def plain() -> None:
            (trainer.module(x, t, eps, label) * factor.to(eps)).mean().backward()
            trainer.optimiser.step()
            trainer.optimiser.zero_grad(set_to_none=True)

        times: dict[str, list[float]] = {"plain": [], "trainer": []}
        for _ in range(options.steps):
            for name, step in (("plain", plain), ("trainer", trainer.train_step)):
                start = perf_counter()
                step()
                times[name].append(perf_counter() - start)
    ours, bare = median(times["trainer"]), median(times["plain"])
    print(f"{options.recipe}: a training step {ours:.3f} s, forward + backward + step {bare:.3f} s: {bare / ours:.1%}")


if __name__ == "__main__":
    main()
