"""Train a network of the second judge: ``python tools/train_judge.py mnist``, or ``digits``.

It is trained on images that no solver was fitted to: the 10,000 test images of MNIST. For the 8 x 8 digits it is
trained on all images, since few are held out; it differs from the objective of tuning, which compares pixels, by its
features.
"""

import argparse
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bfn.data.images import Images
from bfn.data.loading import load
from bfn_lab.second_judge import JUDGES, JudgeNetwork, save_judge

SEED = 4711


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by up to a fourteenth of their side."""
    shift = (2 * torch.rand(len(images), 2, generator=generator) - 1) / 7
    theta = torch.eye(2).repeat(len(images), 1, 1)
    grid = F.affine_grid(torch.cat((theta, shift[..., None]), -1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def train(images: Tensor, labels: Tensor, epochs: int) -> JudgeNetwork:
    """Train a network with AdamW, a cosine schedule and batches of 100."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = JudgeNetwork(images.shape[1], images.shape[-1], int(labels.max()) + 1)
    generator = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.05)
    for epoch in range(epochs):
        for rows in torch.split(torch.randperm(len(images), generator=generator), 100):
            progress = epoch / epochs
            optimiser.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * progress))
            loss = F.cross_entropy(network(jitter(images[rows], generator)), labels[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        print(f"epoch {epoch + 1}/{epochs}: loss {loss.item():.4f}", flush=True)
    return network.eval()


def main() -> None:
    """Train the network, print its accuracy on other images, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("mnist", "digits"))
    name = parser.parse_args().name
    torch.set_num_threads(1)
    seen, unseen = (load(name, part) for part in (("test", "train") if name == "mnist" else ("all", "test")))
    if not isinstance(seen, Images) or not isinstance(unseen, Images) or seen.labels is None or unseen.labels is None:
        raise TypeError(f"{name}: expected images with labels")
    network = train(seen.to_float(), seen.labels, 12 if name == "mnist" else 40)
    with torch.no_grad():
        some = slice(0, 10_000)
        right = (network(unseen.to_float()[some]).argmax(-1) == unseen.labels[some]).float().mean().item()
    JUDGES.mkdir(exist_ok=True)
    path = JUDGES / f"{name}.safetensors"
    save_judge(network, path, {"data": f"{name}, {len(seen)} images", "seed": str(SEED), "accuracy": f"{right:.4f}"})
    print(f"{path}: {100 * right:.2f} % of other images recognised")


if __name__ == "__main__":
    main()
