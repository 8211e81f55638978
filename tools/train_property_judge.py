"""Train the bundled judge of molecules: ``python tools/train_property_judge.py qm9``.

The judge stores which molecules are in the training part. For each number that models of the set are conditioned on
(for QM9, the gap between the highest occupied and the lowest unoccupied orbital) it has a network that estimates the
number from fingerprints. The networks are trained on the training part and tested on the test part. Needs RDKit.
"""

import argparse
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from bfn._utils.files import atomic
from bfn.data.loading import load
from bfn.data.records import Numbers, Records, Sequences
from bfn.quality.molecules import JUDGES, KnownMolecules, MoleculeJudge, Molecules, PropertyNetwork, fingerprints

SEED, EPOCHS, BATCH = 4712, 12, 512


def read(name: str, part: str) -> tuple[list[str], dict[str, Tensor]]:
    """Read canonical SMILES and numbers of a part of the data."""
    records = load(name, part)  # type: ignore[arg-type]
    if not isinstance(records, Records):
        raise TypeError(f"{name}: expected records")
    (column,) = records.samples.values()
    assert isinstance(column, Sequences)
    molecules = Molecules.read(column.texts())
    values = {key: own.values for key, own in records.conditions.items() if isinstance(own, Numbers)}
    return [one or "" for one in molecules.canonical], values


def train(pieces: Tensor, values: Tensor) -> PropertyNetwork:
    """Train a network with AdamW, a cosine schedule, and a Huber loss in standard deviations of the data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = PropertyNetwork(float(values.mean()), float(values.std()))
    generator, std = torch.Generator().manual_seed(SEED), values.std()
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.02)
    steps, step = EPOCHS * math.ceil(len(pieces) / BATCH), 0
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.split(torch.randperm(len(pieces), generator=generator), BATCH):
            optimiser.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * step / steps))
            loss = F.smooth_l1_loss(network(pieces[rows]) / std, values[rows] / std, beta=0.5)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step, total = step + 1, total + loss.item() * len(rows)
        print(f"epoch {epoch + 1}/{EPOCHS}: loss {total / len(pieces):.4f}", flush=True)
    return network.eval()


def save(judge: MoleculeJudge, path: Path) -> None:
    """Write a judge to a safetensors file, atomically, with weights in float16."""
    tensors = {"known": judge.known.hashes}
    for name, network in judge.networks.items():
        for key, value in network.state_dict().items():
            tensors[f"{name}.{key}"] = value.half().contiguous() if value.ndim > 1 else value
    with atomic(path) as temporary:
        save_file(tensors, temporary, dict(judge.metadata))


def main() -> None:
    """Train the networks, print their errors on the test part, and write the judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("qm9",))
    name = parser.parse_args().name
    torch.set_num_threads(1)
    (seen, values), (unseen, truth) = read(name, "train"), read(name, "test")
    pieces, held_out = fingerprints(seen), fingerprints(unseen)
    import rdkit

    metadata = {"data": f"{name}, {len(seen)} molecules", "seed": str(SEED), "rdkit": rdkit.__version__}
    networks = {}
    for key, own in values.items():
        networks[key] = train(pieces, own)
        with torch.no_grad():
            error = networks[key](held_out) - truth[key]
        r2 = 1 - error.square().mean().item() / truth[key].var(correction=0).item()
        metadata |= {f"{key} R2": f"{r2:.4f}", f"{key} mean absolute error": f"{error.abs().mean().item():.5f}"}
    judge = MoleculeJudge(KnownMolecules.of(seen), networks, metadata)
    save(judge, JUDGES / f"{name}.safetensors")
    print(f"{JUDGES / f'{name}.safetensors'}: {metadata}")


if __name__ == "__main__":
    main()
