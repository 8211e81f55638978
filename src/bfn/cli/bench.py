"""``bfn bench``."""

import sys
from contextlib import redirect_stdout

from bfn.cli.common import AsJson, check_positive, tell

__all__ = ["bench"]


def bench(threads: int = 1, json: AsJson = False) -> None:
    """Measure what sampling costs beside the network, in elementwise passes over the state; about a minute.

    Example: bfn bench --threads 2

    Args:
        threads: CPU threads of torch; more of them wait for each other on a busy machine.
    """
    check_positive(threads=threads)

    from bfn.bench import run

    if not json:
        run(threads)
        return
    with redirect_stdout(sys.stderr):
        results = run(threads)
    tell(results, [], json)
