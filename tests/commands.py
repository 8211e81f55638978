"""Command lines that must succeed."""

from bfn.cli import main


def run(*arguments: object) -> None:
    """Run a command line and check its exit code."""
    assert main([str(argument) for argument in arguments]) == 0
