"""Train the judge of molecules again: ``python tools/train_property_judge.py qm9``.

It keeps which molecules are in the training part, and estimates each number that models of the set are asked for by, of
QM9 the gap between the highest occupied and the lowest empty orbital, from the pieces that a molecule is made of. It is
trained on the training part; how good it is, is told on the test part, which it never saw. RDKit is needed.
"""

import argparse
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bfn.data.loading import load
from bfn.data.records import Numbers, Records, Sequences
from bfn.quality.molecules import KnownMolecules, MoleculeJudge, Molecules, PropertyNetwork, fingerprints
from bfn.quality.second_judge import JUDGES

SEED, EPOCHS, BATCH = 4712, 12, 512


def read(name: str, part: str) -> tuple[list[str], dict[str, Tensor]]:
    """Canonical SMILES and numbers of a part."""
    records = load(name, part)  # type: ignore[arg-type]
    if not isinstance(records, Records):
        raise TypeError(f"{name}: expected records")
    (column,) = records.samples.values()
    assert isinstance(column, Sequences)
    molecules = Molecules.read(column.texts())
    values = {key: own.values for key, own in records.conditions.items() if isinstance(own, Numbers)}
    return [one or "" for one in molecules.canonical], values


def train(pieces: Tensor, values: Tensor) -> PropertyNetwork:
    """AdamW with a cosine; squared error in units of the data's deviation, large errors counted by their size."""
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


def main() -> None:
    """Train, say how good it is on molecules it did not see, and write it."""
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
    judge.save(JUDGES / f"{name}.safetensors")
    print(f"{JUDGES / f'{name}.safetensors'}: {metadata}")


if __name__ == "__main__":
    main()
