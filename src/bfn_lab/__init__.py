"""Work that uses the library: the paper's experiments, benchmarks, user studies and Bayesian networks.

This package uses public names of ``bfn`` only. It is a plugin: the entry points of the distribution add the commands
``bfn reproduce`` and ``bfn bench``, the metrics "inception" and "second", and ``bfn compare --blind``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn_lab.bayesian_network import BayesianNetwork

__all__ = ["BayesianNetwork"]


def __getattr__(name: str) -> Any:
    # Imported when it is used: the commands of this package are listed by `bfn --help`, which imports no torch.
    if name in __all__:
        from bfn_lab import bayesian_network

        return getattr(bayesian_network, name)
    raise AttributeError(f"module 'bfn_lab' has no attribute {name!r}")
