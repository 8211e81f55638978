"""A run small enough for a test."""

import numpy as np
import pytest

from bfn.training.settings import Settings

UNET = {"name": "unet", "channels": 8, "multipliers": [1], "n_blocks": 1, "attention_levels": [], "dropout": 0.1}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Two kinds of 4x4 pictures, as an .npz file."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    pixels = (rng.random((80, 4, 4)) * 60 + 190 * labels[:, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x=pixels, labels=labels)
    return path


@pytest.fixture
def settings(images):
    return Settings.from_dict(
        {
            "data": str(images),
            "network": {**UNET, "condition_features": 8},
            "flow": {"name": "continuous", "sigma_1": 0.01},
            "head": "preconditioned",
            "weighting": "edm",
            "batch": 8,
            "steps": 12,
            "warmup": 3,
            "log_every": 2,
            "eval_every": 6,
            "eval_count": 4,
            "sample_every": 0,
            "sample_count": 4,
            "sample_nfe": 4,
            "checkpoint_every": 5,
            "tensorboard": False,
        }
    )
