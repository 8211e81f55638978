"""Wrong input as a message on the page."""

import html
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from bfn.errors import UserError

__all__ = ["spoken"]


@contextmanager
def spoken() -> Iterator[None]:
    """Wrong input, here or in the library, becomes a message on the page."""
    try:
        yield
    except UserError as error:
        line = " ".join(str(error).split())
        raise gr.Error(html.escape(line, quote=False), print_exception=False) from None
