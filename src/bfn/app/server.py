"""The server of the page: it answers only the routes that the page uses, with small bodies of plain values.

Gradio also accepts uploads, serves files, forwards requests to other addresses, and takes objects among the values for
files. The playground needs none of this, so all of it is refused.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import chain
from typing import Any
from urllib.parse import parse_qs

import gradio as gr
from starlette.middleware import Middleware

from bfn.app import page
from bfn.app.drawing import load_models
from bfn.app.requests import DRAW, MIXTURE, ROWS
from bfn.core.errors import UserError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 * 1024
SECONDS = 10.0
"""Time that a client may take to send the head or the body of a request, or to read an answer."""
PAGE = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
BELOW = ("/assets/", "/static/", "/svelte/")
API = "/gradio_api/"
API_PARTS = (
    "info", "app_id", "startup-events", "theme.css", "heartbeat", "queue", "call", "run", "cancel", "reset",
)  # fmt: skip


def is_open(path: str) -> bool:
    """Return True if the page uses this route."""
    if path.startswith(API):
        return path.removeprefix(API).partition("/")[0] in API_PARTS
    return path in PAGE or path.startswith(BELOW)


def objection(body: bytes, names: Sequence[str] | None = None) -> str | None:
    """Return what is wrong with the body of a request, or None.

    Args:
        body: expected to be a JSON object whose ``data`` are numbers, strings and lists of these.
        names: names of the data, if their number is known.
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


@dataclass
class RequestFilter:
    """ASGI middleware that refuses unused routes (404), large bodies (413) and malformed requests (400).

    Args:
        app: the application.
        settings: names of the data of each named call.
    """

    app: App
    settings: Mapping[str, Sequence[str]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
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
        """Return the body of a request, and a status and one line if it is refused."""
        try:
            body = await asyncio.wait_for(_read(receive), SECONDS)
        except TimeoutError:
            return b"", (408, f"a request's body comes within {SECONDS:.0f} seconds")
        if len(body) > MAX_BODY:
            return b"", (413, f"a request holds at most {MAX_BODY} bytes")
        wrong = objection(body, self.settings.get(path.removeprefix(f"{API}call/").rstrip("/")))
        return body, None if wrong is None else (400, wrong)


async def _read(receive: Receive) -> bytes:
    """Return a body, or the first part of one that is too large."""
    body, more = b"", True
    while more and len(body) <= MAX_BODY:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    """Answer a request with a status and one line of text."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    return await send({"type": "http.response.body", "body": f'{{"detail":"{reason}"}}'.encode()})


COLLECT_WITHIN = 10.0
"""Seconds without a reader after which the work of a session is dropped."""
HEADERS = {
    # Gradio's page needs inline scripts and eval. Connections to other hosts are not allowed.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Return the values of the Host header that a server at this address accepts."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


class OwnHost:
    """ASGI middleware that refuses requests whose Host or Origin is not the page's own.

    A server that listens on all addresses accepts every numeric address, but of the names only localhost: the owner of
    a name can let it point anywhere.

    Args:
        app: the application.
        host, port: address that the server listens on.
    """

    def __init__(self, app: App, host: str, port: int) -> None:
        self.app = app
        self.hosts = allowed_hosts(host, port)
        self.port = port
        self.anywhere = host in ("0.0.0.0", "::")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_own(headers.get(b"host", "")):
            return await refuse(scope, send, 403, "this Host is not the playground's")
        origin = headers.get(b"origin")
        if origin is not None and not (origin.startswith("http://") and self._is_own(origin.removeprefix("http://"))):
            return await refuse(scope, send, 403, "this Origin is not the playground's")
        return await self.app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        if host in self.hosts or not self.anywhere:
            return host in self.hosts
        name, _, port = host.rpartition(":")
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return port == str(self.port)


class Protection:
    """The outermost ASGI middleware: it sets headers, refuses other hosts and drops work that nobody collects."""

    def __init__(self, app: App, blocks: gr.Blocks, host: str, port: int) -> None:
        self.app = app
        self.own = OwnHost(self._watched, host, port)
        self.uncollected = Uncollected(blocks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and watch its work, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        return await self.own(scope, receive, _with_headers(send))

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.uncollected.watching(scope):
            return await self.app(scope, receive, send)


class Uncollected:
    """Watches the sessions of Gradio's queue. A session without a reader is dropped together with its work."""

    def __init__(self, blocks: gr.Blocks) -> None:
        self.blocks = blocks
        self.readers: Counter[str] = Counter()
        self.since: dict[str, float] = {}
        self.sweeps: set[asyncio.Task[None]] = set()

    @contextmanager
    def watching(self, scope: Scope) -> Iterator[None]:
        """Count a reader while its request is answered. After other requests, look for sessions without a reader."""
        session = self._collected_by(scope)
        self.readers.update([session] if session else [])
        try:
            yield
        finally:
            if session:
                self.readers.subtract([session])
                self.since[session] = time.monotonic()
            if session or scope.get("method") == "POST":
                self._note()
                sweep = asyncio.get_running_loop().create_task(self._sweep())
                self.sweeps.add(sweep)
                sweep.add_done_callback(self.sweeps.discard)

    def _collected_by(self, scope: Scope) -> str | None:
        path = scope["path"].removeprefix(API)
        if scope.get("method") != "GET" or not path.startswith(("queue/data", "call/")):
            return None
        if path.startswith("queue/data"):
            return parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0] or None
        event = path.rsplit("/", 1)[-1]
        pending = self.blocks._queue.pending_event_ids_session
        return next((session for session, events in pending.items() if event in events), event)

    def _note(self) -> None:
        """Note when each event was first seen, and forget events that are gone."""
        queue, now = self.blocks._queue, time.monotonic()
        held = {*queue.pending_messages_per_session, *chain(*queue.pending_event_ids_session.values())}
        self.since = {name: self.since.get(name, now) for name in held}
        self.readers = +self.readers

    async def _sweep(self) -> None:
        await asyncio.sleep(COLLECT_WITHIN + 0.1)
        queue = self.blocks._queue
        for session in list(queue.pending_messages_per_session):
            events = queue.pending_event_ids_session.get(session, set())
            latest = max(self.since.get(name, math.inf) for name in (session, *events))
            if not self.readers[session] and time.monotonic() - latest >= COLLECT_WITHIN:
                await queue.clean_events(session_hash=session)
                queue.pending_messages_per_session.pop(session, None)
                queue.pending_event_ids_session.pop(session, None)
        self._note()


def _with_headers(send: Send) -> Send:
    """Return ``send`` with the headers of the page, and without headers that let other pages read the answer."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [
                (name, value)
                for name, value in message.get("headers", ())
                if not name.lower().startswith(b"access-control-") and name.lower().decode("latin-1") not in HEADERS
            ]
            message = {**message, "headers": [*kept, *((k.encode(), v.encode()) for k, v in HEADERS.items())]}
        await send(message)

    return sending


def protect(blocks: gr.Blocks, host: str, port: int) -> None:
    """Put the protection around a running server, from the next connection on.

    Gradio listens before this can be done; until then the ``OwnHost`` within the app refuses other hosts.
    """
    config = blocks.server.config
    config.loaded_app = Protection(config.loaded_app, blocks, host, port)
    config.http_protocol_class = type("ImpatientProtocol", (Impatient, config.http_protocol_class), {})


class Impatient(asyncio.Protocol):
    """Base of a protocol of uvicorn that closes a connection whose head or whose reading of an answer takes too long.

    Uvicorn's own timeout starts only after an answer, and ends with the next byte.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(SECONDS, self._close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            _cancelled(self._late)
            self._late = None
        elif self._late is None:
            self._late = self.loop.call_later(SECONDS, self._close)

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancelled(self._stuck)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancelled(self._late)
        _cancelled(self._stuck)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer is not None:
        timer.cancel()


def launch(
    models: Sequence[str] = (), host: str = "127.0.0.1", port: int = 7860, *, browse: bool = False, block: bool = True
) -> gr.Blocks:
    """Serve the page.

    Args:
        models: directories of models, in addition to the bundled ones.
        host: address to listen on.
        port: port to listen on; 0 chooses a free one, see ``.local_url`` of the result.
        browse: whether to open the page in the browser.
        block: whether to return only after an interrupt. Otherwise the page is served until ``.close()``.
    """
    port = _free_port(host, port)
    blocks = page.build(load_models(models))
    middleware = [
        Middleware(OwnHost, host=host, port=port),
        Middleware(RequestFilter, settings={"draw": DRAW, "plane": MIXTURE, "rows": ROWS}),
    ]
    blocks.launch(
        server_name=host, server_port=port, inbrowser=browse, prevent_thread_lock=True, share=False, quiet=True,
        show_error=True, ssr_mode=False, mcp_server=False, pwa=False, run_history=False, enable_monitoring=False,
        footer_links=[], max_file_size=1, app_kwargs={"middleware": middleware}, theme=page.theme(),
        css=page.part("page.css"), head=f"<script>{page.part('player.js')}</script>",
    )  # fmt: skip
    protect(blocks, host, port)
    if block:
        blocks.block_thread()
    return blocks


def _free_port(host: str, port: int) -> int:
    """Return the port if it is free on that host; for 0, any free port."""
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
