"""Packages that only the data readers need: imported when used, with one line that says how to get them."""

import importlib
from types import ModuleType

__all__ = ["require"]

EXTRAS = {"records": ("pandas", "pyarrow", "tokenizers"), "chem": ("rdkit", "selfies", "fcd"), "tables": ("xgboost",)}
"""Packages that come with an extra of their own; all others come with ``data``."""


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional package, or say what it is for and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        package = {"PIL": "Pillow", "sklearn": "scikit-learn"}.get(top, top)
        extra = next((name for name, packages in EXTRAS.items() if top in packages), "data")
        raise ImportError(f"{package} is needed {purpose}: pip install 'bayesian-flow[{extra}]'") from error
