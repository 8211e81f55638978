"""Samples of class-conditional models without a word on classes, beside classes in turn and none at all.

Run as ``python benchmarks/drawn_classes.py``: digits, mnist and mnist-binary, 1,000 samples at 5 calls; other models,
numbers and seeds by its arguments.
"""

import argparse

import bfn
from bfn.quality.judge_choice import judge_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["digits", "mnist", "mnist-binary"])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--nfe", type=int, default=5)
    parser.add_argument("--seed", type=int, default=123)
    options = parser.parse_args()
    for name in options.models:
        model = bfn.load(name)
        judge, _ = judge_for(model).suited(options.n)
        if model.info.classes is None:
            raise SystemExit(f"{name}: a model without classes")
        asked = {"drawn": None, "in turn": model.info.classes.in_turn(options.n), "without": -1}
        for what, label in asked.items():
            out = model.sample(options.n, nfe=options.nfe, batch=256, label=label, seed=options.seed)
            figure = judge(out.x, None if what == "without" else out.label)[judge.measures[0].key]
            print(f"{name:14}{what:10}{judge.measures[0].label} {judge.measures[0].show(figure)}", flush=True)
        print(f"{name:14}{'real':10}{judge.measures[0].show(judge.real(options.n)[judge.measures[0].key])}")


if __name__ == "__main__":
    main()
