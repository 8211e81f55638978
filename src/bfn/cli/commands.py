"""The list of commands: a new one is one function in one file, and one line here."""

from collections.abc import Callable, Sequence

from bfn.cli import Command
from bfn.cli.app import app
from bfn.cli.compare import compare
from bfn.cli.evaluate import evaluate, impute, likelihood
from bfn.cli.models import convert, fetch, info, models, solvers
from bfn.cli.sample import sample
from bfn.cli.train import settings_first, train
from bfn.cli.tune import distill, tune
from bfn_lab.commands import bench, reproduce

COMMANDS: dict[str, Command] = {
    "models": models,
    "info": info,
    "solvers": solvers,
    "sample": sample,
    "impute": impute,
    "train": train,
    "tune": tune,
    "distill": distill,
    "evaluate": evaluate,
    "likelihood": likelihood,
    "compare": compare,
    "reproduce": reproduce,
    "data fetch": fetch,
    "convert": convert,
    "app": app,
    "bench": bench,
}

ARRANGED: dict[str, Callable[[Sequence[str]], list[str]]] = {"train": settings_first}
"""How the words of a command are put in order before they are read, where that is needed."""
