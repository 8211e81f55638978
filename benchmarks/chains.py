"""Measure n-gram models of text8: bits per character of held-out text, and seconds for a posterior.

    python benchmarks/chains.py 3 5:32768 7:32768 7:65536

``3`` is the model of all n-grams with contexts of up to three symbols, ``5:32768`` the pruned one with contexts of up
to five and 32,768 n-grams. Bits are those of 800 windows of 128 letters; the posterior is that of 32 windows, on one
thread.
"""

import argparse
import time

import torch
from torch.nn import functional as F

from bfn import data
from bfn.networks.ngram_counts import count_backoff, count_pruned
from bfn.networks.ngram_posterior import Automaton, BackoffAutomaton, SparseAutomaton, posterior_logits

LENGTH, WINDOWS, BATCH = 128, 800, 32


def bits(chain: Automaton, x: torch.Tensor) -> float:
    """Return the bits per symbol of texts, (n, length), from the sums of the forward pass."""
    total = 0.0
    for part in x.split(chain.batch):
        alpha = chain.start(len(part))
        for symbols in part.T:
            alpha = chain.emit(chain.advance(alpha), F.one_hot(symbols, 27).float().T.contiguous())
            norm = alpha.sum(0)
            alpha, total = alpha / norm, total - float(norm.log2().sum())
    return total / x.numel()


def seconds(chain: Automaton, x: torch.Tensor) -> float:
    """Return the seconds that a posterior given weak evidence takes, the least of three runs."""
    evidence = F.one_hot(x[:BATCH], 27).float()
    found = []
    for _ in range(3):
        start = time.perf_counter()
        for part in evidence.split(chain.batch):
            posterior_logits(chain, part, 16)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Count each model and print a row about it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chains", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train = data.load("text8").to_classes()
    train = train[: len(train) // LENGTH * LENGTH].view(-1, LENGTH)
    held_out = data.load("text8", part="validation").to_classes()
    starts = torch.randint(len(held_out) - LENGTH, (WINDOWS,), generator=torch.Generator().manual_seed(0))
    x = held_out[starts[:, None] + torch.arange(LENGTH)].long()
    print("| contexts | n-grams | states | bits | seconds |\n|---|---|---|---|---|")
    for name in options.chains:
        context, _, most = name.partition(":")
        chain: Automaton
        if most:
            tables = count_pruned(train, int(context), 27, int(most))
            chain = BackoffAutomaton(tables, torch.float32)
        else:
            tables = count_backoff(train, int(context), 27, 0.1)
            chain = SparseAutomaton(tables, torch.float32)
        n = sum(map(len, tables.codes[1:]))
        with torch.no_grad():
            row = f"{bits(chain, x):.3f} | {seconds(chain, x):.2f}"
        print(f"| {context} | {n:,} | {chain.n_states:,} | {row} |", flush=True)


if __name__ == "__main__":
    main()
