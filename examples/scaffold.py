"""Complete molecules: some atoms are given, and the others are drawn around them, with and without particles.

    python examples/molecules.py --out molecules     # trains the model, with fragments given
    python examples/scaffold.py --out molecules

For molecules that were not used for training, either the positions and elements of the heavy atoms are given and the
hydrogens are drawn, or one half of the atoms is given and the other half is drawn. The completed molecules are judged
by the stability of their atoms.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from molecules import EGNN, MOST, Parts, draw, read_qm9, split, stability

import bfn

WAYS = {
    "auto, given as data": ("auto", {}),
    "auto, given on its noisy path": ("auto", {"known_at": "path"}),
    "auto, 8 particles": ("auto", {"particles": 8}),
    "bfn, given on its noisy path": ("bfn", {"known_at": "path"}),
}
"""Solver and options of each method. The last one is the usual method in the literature."""


def heavy_atoms(parts: Parts, present: torch.Tensor) -> torch.Tensor:
    """Return the mask of the atoms that are not hydrogen, (n, MOST)."""
    return present & (parts["kind"] > 0)


def one_half(parts: Parts, present: torch.Tensor) -> torch.Tensor:
    """Return the mask of the half of the atoms that is nearest to the first atom, (n, MOST)."""
    away = (parts["x"] - parts["x"][:, :1]).norm(dim=-1).masked_fill(~present, torch.inf)
    return away.argsort(1).argsort(1) < (present.sum(1) // 2).unsqueeze(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Complete molecules with each method, and measure their stability."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("molecules"), help="folder that examples/molecules.py wrote")
    parser.add_argument("--data", type=Path, help="folder with positions.npy and atoms.npy (default: QM9)")
    parser.add_argument("--n", type=int, default=30, help="number of molecules to complete")
    parser.add_argument("--calls", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    model = bfn.load(options.out / "model", network=EGNN())
    parts, present = read_qm9(options.data or bfn.data.fetch("qm9"))
    _, order = split(len(present), options.n)
    parts, present = {name: values[order] for name, values in parts.items()}, present[order]
    there = dict.fromkeys(parts, present)
    pictures = {}
    for what, given_of in (("heavy atoms", heavy_atoms), ("one half", one_half)):
        given = given_of(parts, present)
        known = {"x": parts["x"], "kind": parts["kind"]}
        masks = {"x": given.unsqueeze(-1).expand(-1, -1, 3), "kind": given}
        for way, (solver, settings) in WAYS.items():
            for calls in options.calls:
                wish = {"known": known, "known_mask": masks, "present": there, "seed": options.seed, **settings}
                out = pictures[what, way] = model.sample(options.n, solver, calls, **wish)
                atoms, _ = stability(out.x, present)
                least = out.effective_sample_size
                told = "" if least is None else f"; {float(least.min(1).values.mean()):.1f} particles count at worst"
                print(f"{what} given; {way}, {calls} calls: {atoms} of the atoms are stable{told}")

    axes = bfn.viz.plots.on(None, "a molecule, and its heavy atoms completed by auto and by bfn", size=(9.0, 2.8))
    ways = ("auto, given as data", "bfn, given on its noisy path")
    rows = [parts, *(pictures["heavy atoms", way].x for way in ways)]
    chosen = {name: torch.stack([row[name][0] for row in rows]) for name in parts}
    draw(axes, chosen, present[:1].expand(3, MOST))
    bfn.viz.save(axes, options.out / "scaffold.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
