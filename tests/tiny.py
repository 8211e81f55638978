"""Models of a few thousand weights, untrained: enough for what reads, samples and writes."""

from pathlib import Path

import torch

from bfn import networks
from bfn.core.conditions import Condition, Lengths
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.info import ModelInfo
from bfn.core.model import BFN
from bfn.data.tokenizers import TokenList

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
UNET = {"name": "unet", "in_channels": 1, "channels": 8, "multipliers": [1], "n_blocks": 1, "attention_levels": []}
TRANSFORMER = {"name": "transformer", "n_classes": 27, "width": 16, "n_blocks": 1, "n_heads": 2, "max_length": 32}


def build(kind: str) -> BFN:
    """A model with its info: "images" (3 classes of them), "binary", "text", "molecules" or "vectors"."""
    config, flow, head, shape, info = {
        "images": (
            {**UNET, "condition_features": 16, "n_labels": 3}, ContinuousFlow(), "preconditioned", (1, 8, 8),
            {"value_range": (-1.0, 1.0), "card": {"quality": {"bits a dimension": 1.23456}, "recipe": "digits"}},
        ),
        "binary": ({**UNET, "condition_features": 16, "n_classes": 2}, DiscreteFlow(2, 9.0), "logits", (1, 8, 8), {}),
        "text": (TRANSFORMER, DiscreteFlow(27, 0.5625), "logits", (20,), {"alphabet": ALPHABET}),
        "molecules": (
            {**TRANSFORMER, "n_classes": 4, "conditions": {"gap": {"shape": [], "mean": 0.25, "std": 0.05}}},
            DiscreteFlow(4, 4.5), "logits", (6,),
            {"tokenizer": TokenList(("C", "N", "O", "="), "smiles"),
             "lengths": Lengths((0, 0, 0.25, 0.25, 0.25, 0, 0.25)),
             "conditions": {"gap": Condition.of(torch.linspace(0.1, 0.4, 50))},
             "card": {"settings": {"data": {"name": "qm9"}}}},
        ),
        "vectors": ({"name": "mlp", "in_features": 2, "width": 8}, ContinuousFlow(), "data", (2,), {}),
    }[kind]  # fmt: skip
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        network = networks.build(config)
        for parameter in network.parameters():
            # Output layers start at zero: without this every prediction would be the same.
            torch.nn.init.normal_(parameter, std=0.2)
    return BFN(network, flow, head, shape, ModelInfo(**info))


def save(kind: str, directory: Path) -> Path:
    """Such a model, stored."""
    return build(kind).save(directory)
