"""Train on data with several parts, a condition and different lengths: rings of points, in about a minute.

    python examples/own_data.py --out rings.png

A sample is a ring of 3 to 6 points. It has two parts: the position of each point (continuous) and its kind (discrete;
the kinds alternate around the ring). The radius is a condition. One network learns both parts. The script then draws
small and large rings, rings with a given number of points, and rings whose first point is given.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import bfn
from bfn._utils.files import atomic
from bfn.core.heads import PreconditionedHead
from bfn.core.joint import JointHead

MOST, KINDS = 6, ("circle", "square", "star")
MARKERS = {"circle": "o", "square": "s", "star": "*"}


def rings(n: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Draw n rings. Return their padded parts, the mask of their points (n, MOST), and their radii (n,)."""
    length = torch.randint(3, MOST + 1, (n, 1), generator=generator)
    radius = 0.4 + 0.6 * torch.rand(n, generator=generator)
    place = torch.arange(MOST)
    angle = 2 * math.pi * (place / length + torch.rand(n, 1, generator=generator))
    at = radius[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)
    kind = (place + torch.randint(len(KINDS), (n, 1), generator=generator)) % len(KINDS)
    present = place < length
    parts = {"at": torch.where(present[..., None], at, 0.0), "kind": torch.where(present, kind, 0)}
    return parts, present, radius


def make_model(width: int) -> bfn.BFN:
    """Make a perceptron over one vector that contains both parts."""
    flow = bfn.JointFlow(at=bfn.ContinuousFlow(0.02), kind=bfn.DiscreteFlow.with_separation(len(KINDS)))
    shapes = {"at": (MOST, 2), "kind": (MOST,)}
    head = JointHead.make({"at": PreconditionedHead(0.5), "kind": "logits"}, flow, flat=True)
    size = flow.for_shape(shapes).state_shape(shapes)[0]
    network = bfn.networks.MLP(size, width=width, conditions={"radius": {"shape": [], "mean": 0.7, "std": 0.17}})
    return bfn.BFN(network, flow, head, shapes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the model, draw rings, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("rings.png"), help="file of the picture (default: rings.png)")
    parser.add_argument("--steps", type=int, default=2000, help="training steps (default: 2000)")
    parser.add_argument("--width", type=int, default=192, help="width of the network (default: 192)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.steps, options.width) < 1:
        parser.error(f"--steps {options.steps} --width {options.width}: expected at least 1 of each")
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    data, present, radius = rings(20_000, torch.Generator().manual_seed(options.seed))
    model = make_model(options.width)
    where = {"at": present, "kind": present}
    bfn.fit(model, data, options.steps, lr=2e-3, condition={"radius": radius}, present=where, seed=options.seed)

    first = torch.zeros(MOST, dtype=torch.bool)
    first[0] = True
    corner = {"at": torch.tensor([[0.8, 0.0], *[[0.0, 0.0]] * (MOST - 1)]), "kind": torch.full((MOST,), 2)}
    given = {"known": corner, "known_mask": {"at": first[:, None].expand(MOST, 2), "kind": first}}
    wishes = {
        "lengths as in the data, radius 0.5": {"condition": {"radius": 0.5}},
        "lengths as in the data, radius 0.9": {"condition": {"radius": 0.9}},
        "3, 4, 5 and 6 points, radius 0.7": {"condition": {"radius": 0.7}, "lengths": [3, 4, 5, 6]},
        "the first point given: a star at (0.8, 0)": {**given, "lengths": 5},
    }
    drawn = {title: model.sample(4, nfe=20, seed=options.seed, **wish) for title, wish in wishes.items()}
    for title, out in drawn.items():
        print(f"{title}: {there(out).sum(1).tolist()} points, radii {radii(out)}")
    write(options.out, drawn)
    print(f"wrote {options.out} after {time.perf_counter() - start:.0f} s")
    return 0


def there(out: bfn.Samples) -> Tensor:
    """Return the mask of the points of each ring, (n, MOST)."""
    return out.present["kind"]


def radii(out: bfn.Samples) -> list[float]:
    """Return the mean distance of the points of each ring from the centre."""
    return [round(r, 2) for r in (out.x["at"].norm(dim=-1).sum(1) / there(out).sum(1)).tolist()]


def write(path: Path, drawn: dict[str, bfn.Samples]) -> None:
    """Plot one row for each request and one column for each ring. Markers show the kinds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.2 * len(drawn)), layout="constrained")
    for axes, (title, out) in zip(figure.subfigures(len(drawn), 1), drawn.items(), strict=True):
        axes.suptitle(title)
        for i, plane in enumerate(axes.subplots(1, 4, sharex=True, sharey=True)):
            plane.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal", xticks=[], yticks=[])
            for (x, y), kind, exists in zip(out.x["at"][i].tolist(), out.x["kind"][i], there(out)[i], strict=True):
                if exists:
                    plane.plot(x, y, MARKERS[KINDS[int(kind)]], color=f"C{int(kind)}")
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png")


if __name__ == "__main__":
    raise SystemExit(main())
