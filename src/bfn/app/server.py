"""What reaches the page's server at all: the routes that the page uses, with small bodies of plain values.

Gradio also takes uploads, serves files, forwards addresses, and takes an object among the values for a file. The
playground needs none of it, so none of it answers.
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


COLLECT_WITHIN = 10.0
"""Seconds without a reader after which what a session asked for is dropped."""
HEADERS = {
    # Gradio's page runs inline scripts and functions made of text, so those must be let in; nothing reaches out.
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
    """What a Host header may say of a server that listens there: this machine by its own names, and the address."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


class OwnHost:
    """ASGI middleware: a request whose Host or Origin is not the page's own is refused.

    host, port: where the server listens. On every address any address of digits is its own; a name never is but
    localhost, since whoever owns a name can let it point anywhere.
    """

    def __init__(self, app: App, host: str, port: int) -> None:
        self.app = app
        self.hosts = allowed_hosts(host, port)
        self.port = port
        self.anywhere = host in ("0.0.0.0", "::")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or let it through."""
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
    """ASGI middleware, the outermost: headers set, strangers refused, uncollected work dropped."""

    def __init__(self, app: App, blocks: gr.Blocks, host: str, port: int) -> None:
        self.app = app
        self.own = OwnHost(self._watched, host, port)
        self.uncollected = Uncollected(blocks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or let it through and look after what it asked for."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        return await self.own(scope, receive, _with_headers(send))

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.uncollected.watching(scope):
            return await self.app(scope, receive, send)


class Uncollected:
    """Sessions of Gradio's queue: one that nobody reads for a while is dropped with its work, waiting or going on."""

    def __init__(self, blocks: gr.Blocks) -> None:
        self.blocks = blocks
        self.readers: Counter[str] = Counter()
        self.since: dict[str, float] = {}
        self.sweeps: set[asyncio.Task[None]] = set()

    @contextmanager
    def watching(self, scope: Scope) -> Iterator[None]:
        """Count the reader while a request that collects is answered, and look again some time after any other."""
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
        """When each event was first seen; what is gone is forgotten."""
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
    """The same, with the headers set, and no other page told that it may read along."""

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
    """Put the protection around a server that was launched: it takes effect from the next connection on.

    Gradio listens before this can be done; until then :class:`OwnHost`, within the app, refuses strangers.
    """
    config = blocks.server.config
    config.loaded_app = Protection(config.loaded_app, blocks, host, port)
    config.http_protocol_class = _impatient(config.http_protocol_class)


def _impatient(protocol: type[Any]) -> type[Any]:
    """A connection that is closed when a request's head, or the reading of an answer, takes too long."""

    class Impatient(protocol):  # type: ignore[misc]
        """Uvicorn's own timeout starts after an answer only, and ends with the next byte."""

        _late: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(SECONDS, self._close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._late = _cancelled(self._late)
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
            self._stuck = _cancelled(self._stuck)

        def connection_lost(self, exc: Exception | None) -> None:
            self._late, self._stuck = _cancelled(self._late), _cancelled(self._stuck)
            super().connection_lost(exc)

    return Impatient


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None


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
