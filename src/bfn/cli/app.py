"""``bfn app``."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from bfn.cli.common import check_positive


def app(
    model: Annotated[tuple[Path, ...], arg(metavar="DIR [DIR ...]")] = (),
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1",
    port: int = 7860,
    open: bool = False,
    threads: int | None = None,
) -> None:
    """Open the playground: samples forming in the browser, two solvers side by side from the same noise.

    Example: bfn app --open

    Example: bfn app --model runs/photos --port 8000

    Args:
        model: directories of models of your own, beside the bundled ones.
        host: address to listen on; by default only this machine can reach it. It has no password.
        port: port to listen on; 0 takes one that is free.
        open: open the page in the browser.
        threads: CPU threads for each of the two requests that are worked on at a time; by default half the cores.
    """
    import os

    import torch

    from bfn.app.server import launch

    check_positive(threads=threads)
    torch.set_num_threads(threads or max(1, min(4, (os.cpu_count() or 2) // 2)))
    page = launch([str(directory) for directory in model], host, port, browse=open, block=False)
    print(f"the playground is at {page.local_url} (Ctrl+C ends it)", flush=True)
    try:
        page.block_thread()
    finally:
        page.close(verbose=False)
