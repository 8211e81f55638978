"""Train a policy that draws actions given an observation, and measure its success against the number of network calls.

    python examples/policy.py --out policy

A point moves from left to right and must avoid a disc in the middle. The expert passes above or below with equal
probability. Regression would learn the mean of both and run into the disc, whereas a sample chooses one of them. The
policy is sampled again every few steps, so its cost is the number of network calls.

Needs ``pip install 'bayesian-flow[train,plot]'``. Takes about a minute on one core; try ``--steps 5 --n 20`` first.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

import bfn
from bfn._utils.estimate import Estimate, share_estimate
from bfn.viz.plots import colour, on

STEP, RADIUS, AROUND = 0.1, 0.3, 0.55
AHEAD, TAKEN, LONGEST = 8, 4, 60
"""Number of actions in a sample, number of them that are executed, and maximum number of steps in an episode."""

Policy = Callable[[Tensor], Tensor]
"""Maps observations (n, 6), the positions of point, goal and disc, to actions (n, AHEAD, 2) in units of STEP."""


def episodes(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the starts, the goals and the centres of the discs, (n, 2) each."""
    y = torch.rand(3, n, generator=generator) - 0.5
    x = torch.tensor([-1.0, 1.0, 0.0]).unsqueeze(1).expand(3, n)
    start, goal, disc = torch.stack([x, y * torch.tensor([1.0, 1.0, 0.6]).unsqueeze(1)], 2)
    return start, goal, disc


def demonstrations(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return observations (m, 6) and the next actions of the expert (m, AHEAD, 2) from n episodes."""
    at, goal, disc = episodes(n, generator)
    above = (torch.rand(n, 1, generator=generator) < 0.5).float() * 2 - 1
    via = disc + above * torch.tensor([0.0, AROUND])
    seen, done = [], []
    for _ in range(40 + AHEAD):
        way = torch.where(at[:, :1] < 0, via, goal) - at
        action = way * (STEP / way.norm(dim=1, keepdim=True).clamp(min=STEP))
        seen.append(torch.cat([at, goal, disc], 1))
        done.append(action / STEP)
        # Small errors in the position show the policy how to recover.
        at = at + action + 0.01 * torch.randn(n, 2, generator=generator)
    chunks = torch.stack(done, 1).unfold(1, AHEAD, 1).transpose(2, 3)
    return torch.stack(seen, 1)[:, : chunks.shape[1]].flatten(0, 1), chunks.flatten(0, 1)


def rollout(policy: Policy, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Run n episodes. Return their paths (n, n_steps, 2) and whether they reached the goal without a collision."""
    at, goal, disc = episodes(n, torch.Generator().manual_seed(seed))
    path, clear = [at], torch.ones(n, dtype=torch.bool)
    for _ in range(LONGEST // TAKEN):
        actions = policy(torch.cat([at, goal, disc], 1))
        for action in actions[:, :TAKEN].unbind(1):
            arrived = (at - goal).norm(dim=1, keepdim=True) < STEP
            at = at + torch.where(arrived, 0.0, action * STEP)
            clear &= (at - disc).norm(dim=1) > RADIUS
            path.append(at)
    return torch.stack(path, 1), clear & ((at - goal).norm(dim=1) < STEP)


def make_model(observations: Tensor, actions: Tensor, seed: int) -> bfn.BFN:
    """Make a perceptron over AHEAD actions that is conditioned on the observation."""
    torch.manual_seed(seed)
    told = {"shape": [6], "mean": observations.mean(0).tolist(), "std": observations.std(0).clamp(min=0.1).tolist()}
    network = bfn.networks.MLP(2 * AHEAD, width=128, conditions={"observation": told})
    head = bfn.heads.PreconditionedHead(float(actions.std()))
    return bfn.BFN(network, bfn.ContinuousFlow.for_data(actions, rest=0.02), head, (2 * AHEAD,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the policy, run episodes with several solvers, and plot the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("policy"), help="folder for the model and the plots")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--n", type=int, default=500, help="number of episodes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    observations, actions = demonstrations(1000, torch.Generator().manual_seed(options.seed))
    model = make_model(observations, actions, options.seed)
    bfn.fit(
        model, actions.flatten(1), options.steps, condition={"observation": observations}, dropout=0.0,
        seed=options.seed, run=options.out / "run",
    )  # fmt: skip
    model.save(options.out / "model")

    def policy_of(solver: str, calls: int) -> Policy:
        generator = torch.Generator().manual_seed(options.seed)
        wish = {"solver": solver, "nfe": calls, "generator": generator}
        return lambda seen: model.sample(len(seen), condition={"observation": seen}, **wish).x.view(-1, AHEAD, 2)

    curves: dict[str, dict[int, Estimate]] = {"auto": {}, "fast-ode": {}, "bfn": {}}
    paths = {}
    for solver, figures in curves.items():
        for calls in (1, 2, 3, 5, 10, 20):
            path, good = paths[solver, calls] = rollout(policy_of(solver, calls), options.n, seed=options.seed + 1)
            figures[calls] = share_estimate(int(good.sum()), options.n)
            print(f"{solver}, {calls} calls: {figures[calls]} of the episodes succeed")
    bfn.viz.save(bfn.viz.against_calls(curves, "share of episodes that succeed"), options.out / "policy.png")

    shown = Figure(figsize=(9.0, 2.8), layout="constrained", dpi=120).subplots(1, 3, sharey=True)
    disc = episodes(options.n, torch.Generator().manual_seed(options.seed + 1))[2]
    for axes, (solver, calls) in zip(shown, (("bfn", 1), ("bfn", 3), ("auto", 3)), strict=True):
        on(axes, f"{solver}, {calls} call{'s' * (calls > 1)}").set_aspect("equal")
        axes.add_patch(Circle((0, 0), RADIUS, color="#dddddd"))
        path, good = paths[solver, calls]
        for way, fine in zip((path - disc.unsqueeze(1))[:60], good[:60], strict=True):
            axes.plot(*way.T, color=colour(0 if fine else 1), linewidth=0.6, alpha=0.7)
    bfn.viz.save(shown[0], options.out / "paths.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
