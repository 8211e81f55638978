"""Tests run on one thread: they share the machine, and results do not depend on how many there are.

Property tests draw the same cases each time, so that a run can be repeated; HYPOTHESIS_PROFILE=random draws others.
"""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
