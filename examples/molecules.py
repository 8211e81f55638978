"""Generate molecules in three dimensions: positions, elements and nuclear charges of all atoms in one sample.

    python examples/molecules.py --out molecules     # can be stopped; the same command continues

Positions, elements and charges are parts of a joint sample, and the number of atoms is handled by presence. The network
is equivariant to rotations and invariant to translations. Samples are judged by stability: the share of atoms with the
right number of bonds, where bonds are found from distances. QM9 is downloaded on first use (``bfn data fetch qm9``).

Needs ``pip install 'bayesian-flow[train,plot]'``.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn._utils.estimate import Estimate, mean_estimate, share_estimate

ELEMENTS, NUMBERS, VALENCES, MOST = "HCNOF", (1, 6, 7, 8, 9), (1, 4, 3, 2, 1), 29
LENGTH, CHARGE, SIGMA_1 = 1.4, (3.6, 2.8), 0.02
"""Standard deviation of positions in angstrom; mean and standard deviation of charges; and the noise that remains on
positions at t = 1, in standard deviations."""
BONDS = {  # lengths of single, double and triple bonds in picometres
    "HH": (74,), "HC": (109,), "HN": (101,), "HO": (96,), "HF": (92,), "CC": (154, 134, 120), "CN": (147, 129, 116),
    "CO": (143, 120, 113), "CF": (135,), "NN": (145, 125, 110), "NO": (140, 121), "NF": (136,), "OO": (148, 121),
    "OF": (142,), "FF": (142,),
}  # fmt: skip
MARGINS = (10, 5, 3)

Parts = dict[str, Tensor]
"""Parts of molecules: x (n, MOST, 3), kind (n, MOST), charge (n, MOST)."""


def read_qm9(folder: Path) -> tuple[Parts, Tensor]:
    """Read molecules, centred and in units of the model, and the mask of atoms that are present, (n, MOST).

    The charge is that of the nucleus. It repeats the element as a number, as is usual in models of molecules.
    """
    x, atoms = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("positions", "atoms"))
    present = atoms > 0
    there = present.unsqueeze(-1)
    x = torch.where(there, x - (x * there).sum(1, keepdim=True) / there.sum(1, keepdim=True), 0.0)
    kind = torch.searchsorted(torch.tensor(NUMBERS), atoms.long()).where(present, 0)
    charge = ((atoms - CHARGE[0]) / CHARGE[1]).where(present, 0.0)
    return {"x": x / LENGTH, "kind": kind, "charge": charge}, present


def split(n: int, n_test: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training molecules (at most 11 of 12) and of ``n_test`` others."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(n))
    return order[: min(120_000, n * 11 // 12)], order[-n_test:]


class EGNN(nn.Module):
    """Equivariant network: messages between all atoms depend on distances, and positions move along differences."""

    def __init__(self, width: int = 96, messages: int = 32, n_layers: int = 5) -> None:
        super().__init__()
        self.stem = nn.Linear(len(ELEMENTS) + 1 + 4, width)
        self.first = nn.Linear(len(CENTRES), messages)
        self.layers = nn.ModuleList(Layer(width, messages) for _ in range(n_layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ELEMENTS) + 1))
        nn.init.zeros_(self.head[1].weight)

    def forward(self, inputs: Mapping[str, Tensor], t: Tensor, present: Mapping[str, Tensor] | None = None) -> Parts:
        """Map inputs (mu of positions, theta of elements, mu of charges) to predicted positions, logits and charges."""
        there = torch.ones(inputs["x"].shape[:2], dtype=torch.bool) if present is None else present["kind"]
        longest = int(there.sum(1).max())  # cut off padding: a batch has molecules of similar size
        mu, kind, charge, there = (v[:, :longest] for v in (inputs["x"], inputs["kind"], inputs["charge"], there))
        mask = there.unsqueeze(-1).float()
        pair = mask * mask.transpose(1, 2) * (1 - torch.eye(longest))
        rest = SIGMA_1 ** t.view(-1, 1, 1)  # standard deviation of the noise on positions
        gamma = 1 - rest.square()
        time = torch.cat([gamma, rest, rest.log(), gamma.sqrt()], -1).expand(-1, longest, -1)
        h, x = self.stem(torch.cat([kind, charge.unsqueeze(-1), time], -1)), mu
        edge = self.first(waves(distances(mu) / gamma.clamp(min=1e-3).sqrt()))
        for layer in self.layers:
            h, x = layer(h, x, edge, pair)
        x = mu + rest * (x - mu)
        x = x - (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # centred predictions
        out = self.head(h)
        found = {"x": x, "kind": out[..., :-1] + kind.clamp(min=1e-30).log(), "charge": out[..., -1:]}
        padded = {name: nn.functional.pad(v * mask, (0, 0, 0, MOST - longest)) for name, v in found.items()}
        return {**padded, "charge": padded["charge"].squeeze(-1)}


class Layer(nn.Module):
    """One round of gated messages between pairs of atoms."""

    def __init__(self, width: int, messages: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(width, messages), nn.Linear(width, messages, bias=False)
        self.edge = nn.Linear(len(CENTRES), messages, bias=False)
        self.move_and_gate = nn.Linear(messages, 2)
        self.update = nn.Sequential(nn.Linear(width + messages, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, x: Tensor, edge: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Update the features (n, n_atoms, width) and the positions (n, n_atoms, 3)."""
        g, d = self.norm(h), distances(x)
        m = nn.functional.silu(self.own(g).unsqueeze(2) + self.other(g).unsqueeze(1) + self.edge(waves(d)) + edge)
        move, gate = self.move_and_gate(m).unbind(-1)
        m = ((torch.sigmoid(gate) * pair).unsqueeze(2) @ m).squeeze(2)
        move = 0.1 * move * pair / (d + 0.3)
        return h + self.update(torch.cat([g, m], -1)), x + x * move.sum(2, keepdim=True) - move @ x


CENTRES = torch.linspace(0.3, 3, 12)


def waves(d: Tensor) -> Tensor:
    """Expand distances in Gaussian basis functions: (...) -> (..., n_centres)."""
    return torch.exp(-16 * (d.unsqueeze(-1) - CENTRES).square())


def distances(x: Tensor) -> Tensor:
    """Return all distances, (n, n_atoms, n_atoms). A small constant keeps the gradient of the root finite."""
    return ((x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1) + 1e-6).sqrt()


def stable_atoms(parts: Parts, present: Tensor) -> Tensor:
    """Return the mask of atoms whose number of bonds fits their element, (n, MOST). Bond orders follow from lengths."""
    limit = torch.full((3, 5, 5), -1.0)
    for pair, lengths in BONDS.items():
        a, b = map(ELEMENTS.index, pair)
        for order, length in enumerate(lengths):
            limit[order, a, b] = limit[order, b, a] = length + MARGINS[order]
    d = 100 * LENGTH * distances(parts["x"])
    between = (present.unsqueeze(1) & present.unsqueeze(2)) & ~torch.eye(MOST, dtype=torch.bool)
    orders = (d < limit[:, parts["kind"].unsqueeze(2), parts["kind"].unsqueeze(1)]) & between
    # A pair that is close enough for a triple bond also passes the limits of double and single bonds.
    bonds = torch.where(orders[2] & orders[1], 3, torch.where(orders[1], 2, orders[0].long())).sum(2)
    return (bonds == torch.tensor(VALENCES)[parts["kind"]]) & present


def stability(parts: Parts, present: Tensor) -> tuple[Estimate, Estimate]:
    """Return the share of stable atoms (mean over molecules) and the share of molecules with only stable atoms."""
    stable = stable_atoms(parts, present)
    whole = (stable | ~present).all(1)
    atoms = mean_estimate((stable.sum(1) / present.sum(1)).double())
    return atoms, share_estimate(int(whole.sum()), len(whole))


def fragment(x: Parts, generator: torch.Generator) -> Parts:
    """Choose what is given in training: for half of the molecules, positions and elements of neighbouring atoms."""
    there = x["x"].abs().sum(-1) > 0
    centre = (torch.rand(there.shape, generator=generator) * there).argmax(1)
    away = (x["x"] - x["x"][torch.arange(len(there)), centre].unsqueeze(1)).norm(dim=-1).masked_fill(~there, torch.inf)
    share = 0.8 * torch.rand(len(there), generator=generator) * (torch.rand(len(there), generator=generator) < 0.5)
    given = away.argsort(1).argsort(1) < (share * there.sum(1)).unsqueeze(1)
    return {"x": given, "kind": given}


def make_model(seed: int) -> bfn.BFN:
    """Make the model: positions and charges are continuous parts, elements are a discrete part."""
    torch.manual_seed(seed)
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(SIGMA_1), kind=bfn.DiscreteFlow(5), charge=bfn.ContinuousFlow(0.05))
    heads = {"x": "data", "kind": "logits", "charge": bfn.heads.PreconditionedHead(1.0)}
    return bfn.BFN(EGNN(), flow, heads, {"x": (MOST, 3), "kind": (MOST,), "charge": (MOST,)})


def draw(axes: object, parts: Parts, present: Tensor) -> None:
    """Plot molecules next to each other, projected on two axes. Lines join atoms as close as in a single bond."""
    colours = ("#bbbbbb", "#333333", "#0072b2", "#d55e00", "#009e73")
    stable = stable_atoms(parts, present)
    for i, there in enumerate(present):
        x, kind = LENGTH * parts["x"][i, there], parts["kind"][i, there]
        near = torch.cdist(x, x) < torch.where((kind == 0).unsqueeze(1) | (kind == 0), 1.25, 1.7)
        x = x[:, :2] + torch.tensor([8.0 * i, 0.0])
        for a, b in near.triu(1).nonzero().tolist():
            axes.plot(*x[[a, b]].T, color="#999999", linewidth=1, zorder=1)  # type: ignore[attr-defined]
        edges = ["none" if good else "red" for good in stable[i, there]]
        axes.scatter(*x.T, c=[colours[k] for k in kind], s=40, edgecolors=edges, zorder=2)  # type: ignore[attr-defined]
    axes.set_aspect("equal")  # type: ignore[attr-defined]
    axes.set_axis_off()  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the model or continue its training, then draw molecules, and measure and plot them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("molecules"), help="folder for the model and the plots")
    parser.add_argument("--data", type=Path, help="folder with positions.npy and atoms.npy (default: QM9)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--n", type=int, default=200, help="number of molecules to draw")
    parser.add_argument("--calls", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    parts, present = read_qm9(options.data or bfn.data.fetch("qm9"))
    train, test = split(len(present), options.n)
    model = make_model(options.seed)
    there = dict.fromkeys(parts, present[train])
    data = {name: values[train] for name, values in parts.items()}
    settings = {"lr": 3e-3, "optimiser": "muon", "batch": 64, "known": fragment, "run": options.out / "run"}
    bfn.fit(model, data, options.steps, present=there, **settings)
    model.save(options.out / "model")

    real = stability({name: values[test] for name, values in parts.items()}, present[test])
    print(f"real molecules: {real[0]} of the atoms are stable, {real[1]} of the molecules")
    curves: dict[str, dict[int, Estimate]] = {"auto": {}, "bfn": {}}
    drawn = {}
    for solver, figures in curves.items():
        for calls in options.calls:
            out = drawn[solver, calls] = model.sample(options.n, solver, calls, seed=options.seed)
            figures[calls], molecules = stability(out.x, out.present["kind"])
            print(f"{solver}, {calls} calls: {figures[calls]} of the atoms are stable, {molecules} of the molecules")
    axes = bfn.viz.against_calls(curves, "share of stable atoms", real=real[0])
    bfn.viz.save(axes, options.out / "stability.png")
    axes = bfn.viz.plots.on(
        None, f"five molecules by auto, {options.calls[-1]} calls; unstable atoms in red", size=(9.0, 2.4)
    )
    out = drawn["auto", options.calls[-1]]
    draw(axes, {name: values[:5] for name, values in out.x.items()}, out.present["kind"][:5])
    bfn.viz.save(axes, options.out / "molecules.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
