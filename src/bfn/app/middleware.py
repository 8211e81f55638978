"""What reaches the page's server at all: the routes that the page uses, with small bodies of plain values.

Gradio also takes uploads, serves files, forwards addresses, and takes an object among the values for a file. The
playground needs none of it, so none of it answers.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from bfn.errors import UserError

__all__ = ["MAX_BODY", "RequestFilter", "is_open", "objection"]

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
            return await _refuse(scope, send, 404, "there is nothing here")
        if scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                return await _refuse(scope, send, 413, f"a request holds at most {MAX_BODY} bytes")
        wrong = objection(body, self.settings.get(scope["path"].removeprefix(f"{API}call/").rstrip("/")))
        if wrong is not None:
            return await _refuse(scope, send, 400, wrong)
        replayed = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> MutableMapping[str, Any]:
            return next(replayed, None) or await receive()

        return await self.app(scope, replay, send)


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    return await send({"type": "http.response.body", "body": f'{{"detail":"{reason}"}}'.encode()})
