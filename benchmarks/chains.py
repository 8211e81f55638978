"""What a chain of letters knows of text8, and what it costs: bits a character of held-out text, seconds of a call.

    python benchmarks/chains.py 3 5:32768 7:32768 7:65536

``3``: all contexts of three symbols. ``5:32768``: contexts of up to five, and the 32,768 n-grams that tell most. Bits
are those of 800 windows of 128 letters; the call is the posterior of 32 of them, on one thread.
"""

import argparse
import time

import torch
from torch.nn import functional as F

from bfn import data
from bfn.networks.ngram_counts import DenseAutomaton, FallingAutomaton, count_backoff
from bfn.networks.ngram_posterior import Automaton, count_telling, posterior_logits

LENGTH, WINDOWS, BATCH = 128, 800, 32


def bits(chain: Automaton, x: torch.Tensor) -> float:
    """Bits a symbol of texts, (n, length), by the sums of the forward pass."""
    total = 0.0
    for part in x.split(chain.batch):
        alpha = chain.start(len(part))
        for d, symbols in enumerate(part.T):
            alpha = chain.emit(chain.advance(alpha, d), F.one_hot(symbols, 27).float().T.contiguous())
            norm = alpha.sum(0)
            alpha, total = alpha / norm, total - float(norm.log2().sum())
    return total / x.numel()


def seconds(chain: Automaton, x: torch.Tensor) -> float:
    """Of one posterior under weak evidence; the better of three."""
    evidence = F.one_hot(x[:BATCH], 27).float()
    found = []
    for _ in range(3):
        start = time.perf_counter()
        for part in evidence.split(chain.batch):
            posterior_logits(chain, part, 16)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Count each chain, and print a row of it."""
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
            tables = count_telling(train, int(context), 27, int(most))
            chain, n = FallingAutomaton(tables, torch.float32), sum(map(len, tables.codes[1:]))
        else:
            chain, n = (
                DenseAutomaton.of(count_backoff(train, int(context), 27, 0.1), torch.float32),
                27 ** (int(context) + 1),
            )
        with torch.no_grad():
            row = f"{bits(chain, x):.3f} | {seconds(chain, x):.2f}"
        print(f"| {context} | {n:,} | {chain.n_states:,} | {row} |", flush=True)


if __name__ == "__main__":
    main()
