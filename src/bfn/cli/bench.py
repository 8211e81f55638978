"""``bfn bench``."""

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

from tyro.conf import arg

from bfn.cli.common import AsJson, check_positive, print_json


def bench(threads: Annotated[int | None, arg(metavar="N")] = None, json: AsJson = False) -> None:
    """Measure what sampling costs beside the network, in elementwise passes over the state; about a minute.

    Example: bfn bench --threads 1

    Args:
        threads: CPU threads of torch; as many as it takes by itself if left out.
    """
    if threads is not None:
        check_positive(threads=threads)

    from bfn.bench import run

    with redirect_stdout(sys.stderr) if json else nullcontext():
        results = run(threads)
    if json:
        print_json(results)
