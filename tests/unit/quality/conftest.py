"""Scripts of tools/ as modules."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.fixture
def tool():
    """Return a function that loads a script by its name."""

    def load(name: str):
        spec = spec_from_file_location(name, Path(__file__).parents[3] / "tools" / f"{name}.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
