"""Generate protein sequences of different lengths, with a temperature and with some residues given.

    python examples/proteins.py --out proteins

The protein family is artificial: a mixture of three profile hidden Markov models (clans) with insertions and deletions.
Its exact likelihood is known and measures the samples; the network does not see it. For your own sequences use
``bfn train proteins.fasta --tokenizer amino-acids known=0.5``.

Needs ``pip install 'bayesian-flow[train,plot]'``. Takes about two minutes on one core; try ``--steps 5 --n 20`` first.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import bfn
from bfn._utils.estimate import Estimate, mean_estimate

CLANS, COLUMNS, LONGEST = 3, 24, 32
INSERT, DELETE = 0.04, 0.04


class Family:
    """A mixture of profile hidden Markov models, with insertions before columns and deletions of columns."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        likes = 3.0 * torch.randn(CLANS, COLUMNS, 20, generator=generator)
        shared = 4.0 * torch.randn(COLUMNS, 20, generator=generator)
        conserved = torch.rand(COLUMNS, 1, generator=generator) < 0.4  # columns that all clans share
        self.profile = torch.where(conserved, shared, likes).softmax(-1)

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n sequences (n, LONGEST) and the mask of their residues."""
        profile = self.profile[torch.randint(CLANS, (n,), generator=generator)]
        matched = torch.multinomial(profile.flatten(0, 1), 1, generator=generator).view(n, COLUMNS)
        letters = torch.stack([torch.randint(20, (n, COLUMNS), generator=generator), matched], 2).flatten(1)
        shares = torch.tensor([INSERT, 1 - DELETE]).repeat(COLUMNS)
        kept = torch.rand(n, 2 * COLUMNS, generator=generator) < shares
        order = (~kept).long().argsort(dim=1, stable=True)[:, :LONGEST]  # residues that are kept come first
        present = kept.gather(1, order)
        return letters.gather(1, order) * present, present

    def log_likelihood(self, x: Tensor, present: Tensor) -> Tensor:
        """Return log p(sequence) / length, (n,), by the forward algorithm, which sums over clans and alignments."""
        emit = self.profile[:, :, x].double()  # (clan, column, n, position)
        alpha = torch.zeros(CLANS, len(x), LONGEST + 1, dtype=torch.float64)  # by number of residues
        alpha[:, :, 0] = 1.0
        for column in range(COLUMNS):
            one_more = torch.nn.functional.pad(alpha, (1, 0))[:, :, :-1]
            alpha = (1 - INSERT) * alpha + INSERT / 20 * one_more
            matched = torch.nn.functional.pad(alpha[:, :, :-1] * emit[:, column], (1, 0))
            alpha = DELETE * alpha + (1 - DELETE) * matched
        lengths = present.sum(1)
        return alpha.mean(0)[torch.arange(len(x)), lengths].clamp(min=1e-300).log() / lengths


def likeness(x: Tensor, present: Tensor) -> Estimate:
    """Return the share of positions at which neighbouring sequences agree. It is large if samples lack diversity."""
    both = present & present.roll(1, 0)
    return mean_estimate(((x == x.roll(1, 0)) & both).sum(1) / both.sum(1))


def loop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Choose what is given in training: for half of the sequences, everything except for one stretch (a loop)."""
    start = torch.randint(0, LONGEST - 6, (len(x), 1), generator=generator)
    length = torch.randint(4, 14, (len(x), 1), generator=generator)
    place = torch.arange(x.shape[1])
    outside = (place < start) | (place >= start + length)
    return outside & (torch.rand(len(x), 1, generator=generator) < 0.5)


def make_model(seed: int) -> bfn.BFN:
    """Make a small transformer over amino acids."""
    torch.manual_seed(seed)
    network = bfn.networks.Transformer(n_classes=20, width=64, n_blocks=3, n_heads=4, max_length=LONGEST)
    info = bfn.ModelInfo(text_tokenizer=bfn.data.AMINO_ACIDS)
    return bfn.BFN(network, bfn.DiscreteFlow(20), "logits", (LONGEST,), info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a model, draw and fill in sequences, and plot their likelihoods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("proteins"), help="folder for the model and the plot")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--n", type=int, default=400, help="number of sequences to draw")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    family, generator = Family(), torch.Generator().manual_seed(options.seed)
    x, present = family.draw(4000, generator)
    real, there = family.draw(options.n, generator)
    model = make_model(options.seed)
    bfn.fit(model, x, options.steps, present=present, known=loop, lr=2e-3, seed=options.seed, run=options.out / "run")
    model.save(options.out / "model")

    def judged(samples: bfn.Samples) -> Estimate:
        return mean_estimate(family.log_likelihood(samples.x, samples.present))

    # The loop of real sequences is drawn again. The real loop is a sample from the exact conditional distribution.
    place = torch.arange(LONGEST)
    known = {"known": real, "known_mask": there & ((place < 8) | (place >= 16)), "present": there}
    wishes = {"": {}, ", a loop filled in": known, ", temperature 0.7": {"temperature": 0.7}}
    truth = mean_estimate(family.log_likelihood(real, there))
    curves: dict[str, dict[int, Estimate]] = {}
    for what, wish in wishes.items():
        for solver in ("auto", "bfn"):
            draws = {calls: model.sample(options.n, solver, calls, seed=options.seed, **wish) for calls in (5, 10, 20)}
            curves[solver + what] = {calls: judged(out) for calls, out in draws.items()}
            for calls, out in draws.items():
                alike = likeness(out.x, out.present)
                print(f"{solver}{what}, {calls} calls: {curves[solver + what][calls]}, identity {alike.value:.1%}")
            print(*model.decode(draws[10].x[:2], draws[10].present[:2]))

    print(f"real sequences: log-likelihood per residue {truth}, identity {likeness(real, there).value:.1%}")
    axes = bfn.viz.against_calls(curves, "log-likelihood per residue, nats", real=truth)
    bfn.viz.save(axes, options.out / "proteins.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
