"""What reaches the page's server at all: the routes that the page uses, with small bodies of plain values.

Gradio also takes uploads, serves files, forwards addresses, and takes an object among the values for a file. The
playground needs none of it, so none of it answers.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from bfn.errors import UserError

__all__ = [
    "API",
    "MAX_BODY",
    "SECONDS",
    "App",
    "Receive",
    "RequestFilter",
    "Scope",
    "Send",
    "is_open",
    "objection",
    "refuse",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 * 1024
SECONDS = 10.0
"""That a client may take to send a request's head, its body, or to take in what was sent to it."""
PAGE = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
BELOW = ("/assets/", "/static/", "/svelte/")
API = "/gradio_api/"
API_PARTS = (
    "info", "app_id", "startup-events", "theme.css", "heartbeat", "queue", "call", "run", "cancel", "reset",
)  # fmt: skip


def is_open(path: str) -> bool:
    """Whether the page uses this route."""
    if path.startswith(API):
        return path.removeprefix(API).partition("/")[0] in API_PARTS
    return path in PAGE or path.startswith(BELOW)


def objection(body: bytes, names: Sequence[str] | None = None) -> str | None:
    """What is wrong with a body, or None: a JSON object whose ``data`` are numbers, strings and lists of these.

    names: of the data, where they are known to be those.
    """
    try:
        value = json.loads(body, parse_constant=_not_finite)
    except (ValueError, RecursionError):
        return "the body is not JSON"
    data = value.get("data", []) if isinstance(value, dict) else None
    if not isinstance(data, list):
        return "the body is not an object with a list of data"
    if not all(_plain(entry) for item in data for entry in (item if isinstance(item, list) else [item])):
        return "the data hold an object or a list of lists: expected numbers, strings and lists of these"
    if names is not None and len(data) != len(names):
        return f"{len(data)} settings: expected {len(names)}: {', '.join(names)}"
    return None


def _not_finite(name: str) -> float:
    raise UserError(name)


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


class RequestFilter:
    """ASGI middleware: 404 for other routes, 413 for large bodies, 400 for what is no request of the page.

    settings: names of the data that a call by name takes.
    """

    def __init__(self, app: App, settings: Mapping[str, Sequence[str]]) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http" or not is_open(scope["path"]):
            return await refuse(scope, send, 404, "there is nothing here")
        if scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        body, wrong = await self._body(scope["path"], receive)
        if wrong is not None:
            return await refuse(scope, send, *wrong)
        replayed = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> MutableMapping[str, Any]:
            return next(replayed, None) or await receive()

        return await self.app(scope, replay, send)

    async def _body(self, path: str, receive: Receive) -> tuple[bytes, tuple[int, str] | None]:
        """The body of a request, and what is wrong with it: a status and one line."""
        try:
            body = await asyncio.wait_for(_read(receive), SECONDS)
        except TimeoutError:
            return b"", (408, f"a request's body comes within {SECONDS:.0f} seconds")
        if len(body) > MAX_BODY:
            return b"", (413, f"a request holds at most {MAX_BODY} bytes")
        wrong = objection(body, self.settings.get(path.removeprefix(f"{API}call/").rstrip("/")))
        return body, None if wrong is None else (400, wrong)


async def _read(receive: Receive) -> bytes:
    """All of a body, or as much of it as shows that it is too large."""
    body = b""
    more = True
    while more and len(body) <= MAX_BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    """Answer a request with a status and one line."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    return await send({"type": "http.response.body", "body": f'{{"detail":"{reason}"}}'.encode()})
