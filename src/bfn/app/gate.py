"""What reaches the page's server at all: the routes that the page uses, and bodies of a few kilobytes.

Gradio also takes uploads, serves files and forwards addresses. The playground needs none of it, so none of it answers.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 * 1024
PAGE = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
BELOW = ("/assets/", "/static/", "/svelte/")
API = "/gradio_api/"
API_PARTS = (
    "info", "app_id", "startup-events", "theme.css", "heartbeat", "queue", "call", "run", "cancel", "reset",
)  # fmt: skip


def opens(path: str) -> bool:
    """Whether the page uses this route."""
    if path.startswith(API):
        return path.removeprefix(API).partition("/")[0] in API_PARTS
    return path in PAGE or path.startswith(BELOW)


class _TooLargeError(Exception):
    """More came than a request of the page can hold."""


class Gate:
    """ASGI middleware: 404 for other routes, 413 for large bodies, and headers that keep the page to itself."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http" or not opens(scope["path"]):
            return await _refuse(scope, send, 404, "there is nothing here")
        taken, begun = 0, False

        async def measured() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise _TooLargeError
            return message

        async def answered(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            return await self.app(scope, measured, answered)
        except _TooLargeError:
            if begun:
                raise
            return await _refuse(scope, send, 413, f"a request holds at most {MAX_BODY} bytes")


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    return await send({"type": "http.response.body", "body": f'{{"detail":"{reason}"}}'.encode()})
