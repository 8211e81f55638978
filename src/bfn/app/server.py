"""The page on a port of this machine."""

import errno
import socket
from collections.abc import Sequence

import gradio as gr
from starlette.middleware import Middleware

from bfn.app import page
from bfn.app.middleware import RequestFilter
from bfn.app.models import load_models
from bfn.app.protection import OwnHost, protect
from bfn.app.requests import DRAW, MIXTURE, ROWS
from bfn.errors import UserError

__all__ = ["launch"]


def launch(
    models: Sequence[str] = (), host: str = "127.0.0.1", port: int = 7860, *, browse: bool = False, block: bool = True
) -> gr.Blocks:
    """Serve the page until interrupted, or, where it should not block, until ``.close()``.

    models: directories of models beside the bundled ones. port: 0 takes one that is free; ``.local_url`` tells.
    browse: open it in the browser.
    """
    port = _free_port(host, port)
    blocks = page.build(load_models(models))
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browse,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        show_error=True,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        max_file_size=1,
        app_kwargs={
            "middleware": [
                Middleware(OwnHost, host=host, port=port),
                Middleware(RequestFilter, settings={"draw": DRAW, "plane": MIXTURE, "rows": ROWS}),
            ]
        },
        theme=page.theme(),
        css=page.part("page.css"),
        head=f"<script>{page.part('player.js')}</script>",
    )
    protect(blocks, host, port)
    if block:
        blocks.block_thread()
    return blocks


def _free_port(host: str, port: int) -> int:
    """A port that is free on that host: the one given, any for 0."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port {port}: expected a port from 1 to 65535, or 0 for one that is free")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(f"--port {port}: something else listens there; take another, or 0 for any") from None
            raise UserError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from None
        return int(probe.getsockname()[1])
