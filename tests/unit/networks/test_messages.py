"""Error messages of the networks: one line each."""

import pytest
import torch

import bfn
from bfn.networks import (
    MLP,
    OfficialBinaryUNet,
    OfficialFlatUNet,
    OfficialTransformer,
    TableMLP,
    Transformer,
    UNet,
    build,
)
from bfn.networks.conditioning import declared
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.networks.transformer import Rotary

BATCH = 4
CONDITIONS = {"gap": {"shape": []}, "target": {"shape": [], "n_classes": 5}, "pose": {"shape": [8]}}
PUBLISHED = ("transformer", "flat", "binary")
PROMPT = {"prompt": {"shape": [6], "n_classes": 7}}


def mlp(**arguments):
    return MLP(3, width=8, n_blocks=1, n_labels=3, conditions=CONDITIONS)(
        torch.zeros(BATCH, 3), torch.zeros(BATCH), **arguments
    )


def transformer(*shape, **arguments):
    network = Transformer(in_features=3, width=8, n_blocks=1, n_heads=2, max_length=16, conditions=PROMPT)
    return network(torch.zeros(shape or (1, 5, 3)), torch.zeros(1), **arguments)


def unet(*shape, patch=1, n_classes=0, **arguments):
    network = UNet(2, channels=8, n_blocks=1, head_features=8, patch=patch, n_classes=n_classes)
    return network(torch.zeros(shape), torch.zeros(len(shape) and shape[0]), **arguments)


def published(kind, inputs=None, t=None, label=None, **changes):
    """Call one of the published networks with inputs, times or labels other than the right ones."""
    make, config, shape = {
        "transformer": (OfficialTransformer, {"n_classes": 5, "length": 7, "n_layers": 1}, (3, 7, 5)),
        "flat": (OfficialFlatUNet, {"channels": 2, "n_blocks": 1, "groups": 4, "n_outputs": 1}, (3, 2, 6, 4)),
        "binary": (
            OfficialBinaryUNet,
            {"multipliers": [1, 2, 2], "n_blocks": 1, "groups": 4, "attention_rates": []},
            (3, 1, 8, 4, 2),
        ),
    }[kind]
    network = make(**{"width": 16, "n_heads": 2, **config, **changes})
    return network(torch.zeros(inputs or shape), torch.zeros(3 if t is None else t), label)


def damaged_ngrams():
    layer = NGramPosterior(4, 3)
    layer.count(torch.randint(4, (50, 30)))
    layer.get_buffer("sizes")[1] = 1
    layer(torch.full((1, 5, 4), 0.25))


def name(**config):
    return lambda: build(config)


WRONG = [
    (name(name="vae"), "network name 'vae': expected one of unet, transformer, mlp"),
    (name(), "network name None"),
    (name(name="mlp", in_features=2, depth=3), "network mlp: .* keyword argument 'depth'; its arguments are in_feat"),
    (name(name="unet"), "network unet: missing a required argument: 'in_channels'"),
    (name(name="mlp", in_features=0), "in_features=0: expected a whole number from 1"),
    (name(name="mlp", in_features=2.5), "in_features=2.5: expected a whole number"),
    (name(name="mlp", in_features=float("nan")), "in_features=nan: expected plain values, not NaN"),
    (name(name="mlp", in_features=2, n_blocks=10**12), "n_blocks=10+: expected a whole number from 1 to 10,000"),
    (name(name="mlp", in_features=2, n_classes=1), "n_classes=1: expected 0 .* or at least 2"),
    (name(name="mlp", in_features=2, n_labels=-1), "n_labels=-1"),
    (name(name="unet", in_channels=1, channels=12), "channels=12: expected a multiple of 8"),
    (name(name="unet", in_channels=1, multipliers=[]), "n_levels=0"),
    (name(name="unet", in_channels=1, attention_levels=[2]), "attention_levels has 2: .* levels 0 to 1"),
    (name(name="unet", in_channels=1, head_features=48), "head_features=48: does not divide the 128 channels"),
    (name(name="transformer"), "give n_classes alone"),
    (name(name="transformer", in_features=3, n_classes=3), "give n_classes alone"),
    (name(name="transformer", n_classes=1), "n_classes=1"),
    (name(name="transformer", n_classes=3, width=20, n_heads=4), "width=20: expected a multiple of 8"),
    (name(name="transformer", n_classes=3, kernel_size=4), "kernel_size=4: expected an odd number"),
    (name(name="transformer", n_classes=27, ngram=13), "ngram=13: with 27 classes expected .* at most 12 symbols"),
    (name(name="transformer", n_classes=8, ngram=10**12), "ngram=1000000000000: with 8 classes .* at most 19 symbols"),
    (name(name="transformer", in_features=3, ngram=2), "ngram=2: an n-gram model is for discrete sequences"),
    (lambda: NGramPosterior(4, 1).count(torch.randn(3, 2)), r"data of shape \(3, 2\): n-grams are counted in classes"),
    (damaged_ngrams, "an n-gram model with .*: the file is damaged"),
    (lambda: Rotary(7, max_length=4), "features=7"),
    (lambda: TableMLP(0, []), "expected columns, classes of at least 2"),
    (lambda: TableMLP(1, [1]), "expected columns, classes of at least 2"),
    (lambda: TableMLP(-1, [2]), "expected columns, classes of at least 2"),
    (lambda: TableMLP(1, [2], n_waves=-1), "n_waves=-1: expected at least 0"),
    (lambda: MLP(2, conditions=PROMPT), "condition prompt is a sequence: an MLP takes none"),
    (lambda: UNet(1, attention_levels=(), conditions=PROMPT), r"attention_levels=\[\]: condition prompt is a sequence"),
    # Inputs.
    (lambda: unet(4, 3, 8, 8), r"inputs of shape \(4, 3, 8, 8\): this network takes \(batch, 2, height, width\)"),
    (lambda: unet(4, 2, 12, 8, n_classes=2), r"takes \(batch, 2, height, width, 2\)"),
    (lambda: unet(4, 2, 28, 30, patch=2), "images of 28 x 30: expected sides that are multiples of 4"),
    (lambda: transformer(1, 7, 6), r"takes \(batch, length, 3\)"),
    (lambda: transformer(1, 300, 3), "sequences of length 300: this network was built with max_length=16"),
    (lambda: MLP(4)(torch.zeros(4, 4, 3), torch.zeros(4)), r"takes \(batch, 4\)"),
    (lambda: MLP(4, n_classes=3)(torch.zeros(4, 3, 4), torch.zeros(4)), r"takes \(batch, 4, 3\)"),
    (lambda: MLP(2)(torch.zeros(3, 2), torch.tensor(0.5)), r"t of shape \(\): expected one time per sample, \(3,\)"),
    (lambda: MLP(2, n_times=2)(torch.zeros(3, 2), torch.zeros(3)), r"one time per sample and part, \(3, 2\)"),
    *[(lambda kind=kind: published(kind, inputs=(3, 2)), "inputs of shape") for kind in PUBLISHED],
    *[(lambda kind=kind: published(kind, t=1), "one time per sample") for kind in PUBLISHED],
    *[(lambda kind=kind: published(kind, width=15), "width=15: expected") for kind in PUBLISHED],
    *[
        (lambda kind=kind: published(kind, label=torch.zeros(3)), "label given to a network without labels")
        for kind in PUBLISHED
    ],
    (lambda: published("binary", inputs=(3, 1, 6, 4, 2)), "height=6: expected a multiple of 4"),
    # Masks.
    (lambda: transformer(2, 7, 3, present=torch.ones(2, 6, dtype=torch.bool)), "t of shape|present of shape"),
    (
        lambda: transformer(present=torch.ones(1, 6, dtype=torch.bool)),
        r"torch.bool: expected .* \(1, 5\) or \(1, 5, 3\)",
    ),
    (lambda: transformer(present=torch.ones(1, 5)), r"present of shape \(1, 5\), torch.float32: expected bool"),
    (
        lambda: unet(2, 2, 8, 8, present=torch.ones(2, 8, 8, dtype=torch.bool)),
        r"expected bool of \(2, 2, 8, 8\) or \(2, 1, 8, 8\)$",
    ),
    (lambda: mlp(present=torch.ones(4, 2, dtype=torch.bool)), r"expected bool of \(4, 3\)$"),
    # Labels and conditions.
    (lambda: mlp(label=torch.tensor([0, 3, 0, 0])), "label from 0 to 3: expected classes from 0 to 2, or -1 for none"),
    (lambda: mlp(label=torch.tensor([0, -2, 0, 0])), "label from -2 to 0"),
    (lambda: MLP(2)(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1)), "without labels: build it with n_labels"),
    (lambda: mlp(gpa=torch.zeros(BATCH)), "'gpa': this network knows label, gap, pose, target; .* mean 'gap'?"),
    (lambda: mlp(gap=torch.zeros(BATCH, 1)), r"gap of shape \(4, 1\): this network takes \(4,\)"),
    (lambda: mlp(pose=torch.zeros(BATCH - 1, 8)), r"pose of shape \(3, 8\): this network takes \(4, 8\)"),
    (lambda: mlp(target=torch.tensor([0, 1, 5, 2])), "target from 0 to 5: expected classes from 0 to 4"),
    (lambda: mlp(target=torch.tensor([0, 1, -2, 2])), "target from -2 to 2"),
    (lambda: mlp(target=torch.zeros(BATCH)), "target of torch.float32: expected classes, whole numbers"),
    (lambda: transformer(prompt=torch.tensor([[0, 1, 2, 7, -1, -1]])), "prompt from -1 to 7"),
    (lambda: MLP(2)(torch.zeros(1, 2), torch.zeros(1), gap=torch.zeros(1)), "condition 'gap': this network knows none"),
    # Declarations.
    (lambda: declared({"label": {"n_classes": 3}}), "condition 'label': expected a Python name other than .*n_labels"),
    (lambda: declared({"a b": {}}), "condition 'a b'"),
    (lambda: declared({"gap": 3}), "condition gap is 3: expected a mapping with shape"),
    (lambda: declared({"gap": {"sdt": 1.0}}), "gap has 'sdt': expected shape, .*; did you mean 'std'?"),
    (lambda: declared({"gap": {"shape": [2, 3, 4]}}), r"gap of shape \[2, 3, 4\]: expected \[\], \[features\] or"),
    (lambda: declared({"gap": {"shape": [2, 3], "n_classes": 2}}), r"gap of shape \[2, 3\]: expected \[\] or"),
    (lambda: declared({"gap": {"shape": 8}}), "condition gap of shape 8: expected"),
    (lambda: declared({"gap": {"shape": [0]}}), r"condition gap of shape \[0\]"),
    (lambda: declared({"gap": {"n_classes": -1}}), "condition gap with n_classes=-1"),
    (lambda: declared({"gap": {"n_classes": 3, "mean": 0.5}}), "condition gap has n_classes and mean"),
    (lambda: declared({"gap": {"std": 0.0}}), "condition gap with std=0.0: expected a number above 0"),
    (lambda: declared({"gap": {"mean": "much"}}), "condition gap with mean=much: expected a number"),
    (lambda: declared({"gap": {"shape": [3], "mean": [1.0, 2.0]}}), r"mean=\[1.0, 2.0\]: expected a number, or 3"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_input_is_one_line(make, message):
    with pytest.raises(bfn.UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
