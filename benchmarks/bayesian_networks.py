"""Measure how far a trained model of a table is from the truth, a Bayesian network that draws exact training rows.

    python benchmarks/bayesian_networks.py child insurance --rows 20000 --seed 0

Prints, in nats per row with 95 % intervals over new exact rows:

    an upper bound of the KL divergence of the truth from the model: log p of exact rows minus the model's bound
    the KL divergence of the truth from independent columns, the other end of the scale
    log p of the model's rows, beside that of exact rows, and the share of rows that are impossible
"""

import argparse
import json
import time

import torch

import bfn
from bfn._utils.estimate import mean_estimate, share_estimate
from bfn_lab import BayesianNetwork


def measured(name: str, args: argparse.Namespace) -> dict:
    network = BayesianNetwork.read(name) if name.endswith((".bif", ".bif.gz")) else BayesianNetwork.fetch(name)
    rows = network.decode(network.sample_data(args.rows, torch.Generator().manual_seed(args.seed)))
    settings = {} if args.steps is None else {"steps": args.steps}
    start = time.perf_counter()
    # Every level of every node is a class, also where it is rare.
    model = bfn.TableSynthesizer(seed=args.seed, **settings).fit(rows)
    minutes = (time.perf_counter() - start) / 60
    new = network.sample_data(args.test, torch.Generator().manual_seed(args.seed + 1))
    # A level that no training row has, the model cannot say: such rows are counted and left out.
    table = network.decode(new)
    levels = {column.name: {*column.levels} for column in model.columns.columns}
    known = torch.tensor([all(row[name] in own for name, own in levels.items()) for row in table.to_dict("records")])
    exact = network.log_prob(new)
    marginals = network.marginals()
    alone = sum(marginals[part].double().log()[values] for part, values in new.items())
    bound = torch.from_numpy(model.log_likelihood(table[known.numpy()].reset_index(drop=True)))
    found = {
        "network": name, "rows": args.rows, "seed": args.seed, "steps": args.steps, "fit_minutes": minutes,
        "unseen_levels": share_estimate(int((~known).sum()), len(known)).asdict(),
        "kl_at_most": mean_estimate(exact[known] - bound).asdict(),
        "kl_independent": mean_estimate(exact - alone).asdict(),
        "log_p_exact_rows": mean_estimate(exact).asdict(),
    }  # fmt: skip
    for calls in args.calls:
        drawn = network.log_prob(network.encode(model.sample(args.test, nfe=calls, seed=args.seed)))
        possible = torch.isfinite(drawn)
        found[f"log_p_rows_{calls}_calls"] = mean_estimate(drawn[possible]).asdict()
        found[f"impossible_{calls}_calls"] = share_estimate(int((~possible).sum()), len(drawn)).asdict()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--steps", type=int, help="of training; what suits the table if left out")
    parser.add_argument("--calls", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.networks:
        print(json.dumps(measured(name, args), indent=1), flush=True)


if __name__ == "__main__":
    main()
