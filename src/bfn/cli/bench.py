"""``bfn bench``."""

import sys
from contextlib import nullcontext, redirect_stdout

from bfn.cli.common import AsJson, check_positive, print_json

__all__ = ["bench"]


def bench(threads: int = 1, json: AsJson = False) -> None:
    """Measure what sampling costs beside the network, in elementwise passes over the state; about a minute.

    Example: bfn bench --threads 2

    Args:
        threads: CPU threads of torch; more of them wait for each other on a busy machine.
    """
    check_positive(threads=threads)

    from bfn.bench import run

    with redirect_stdout(sys.stderr) if json else nullcontext():
        results = run(threads)
    if json:
        print_json(results)
