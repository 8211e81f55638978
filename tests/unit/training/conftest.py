"""A run small enough for a test."""

from pickle import UnpicklingError

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
def refuses():
    """A function that checks that a call raises a one-line error with this text."""

    def check(message, call, *arguments, **options):
        with pytest.raises((ValueError, RuntimeError, OSError, UnpicklingError)) as error:
            call(*arguments, **options)
        assert message in str(error.value)

    return check


@pytest.fixture
def settings(images):
    flow, network = {"name": "continuous", "sigma_1": 0.01}, {**UNET, "condition_features": 8}
    return Settings(
        str(images), network, flow, "preconditioned", "edm", batch=8, steps=12, warmup=3, log_every=2, eval_every=6,
        eval_count=4, sample_every=0, sample_count=4, sample_nfe=4, checkpoint_every=5, tensorboard=False,
    )  # fmt: skip
