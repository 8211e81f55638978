"""The playground over HTTP: what it answers, what it refuses, and that it goes on serving."""

import base64
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from PIL import Image

import bfn
from bfn.app import server
from bfn.app.server import MAX_BODY, launch
from bfn.viz.pictures import sheet
from messages import refused

GOOD = ["digits", 4, 0, "all", 1, "", "nothing", 0, None, "bfn", 4, "own", "own", "auto", 5, "own", "own"]
LONG = ["mnist", 64, *GOOD[2:10], 200, *GOOD[11:]]
PLANE = ["eight on a ring", ["bfn", "fast-ode"], 4, 8, 0]


class Client:
    """The page's own HTTP interface."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def answer(self, path: str, body: bytes | None = None, method: str | None = None, **headers: str) -> Any:
        """Status, text and headers."""
        sent = urllib.request.Request(
            self.url + path, body, {"Content-Type": "application/json", **headers}, method=method
        )
        try:
            with urllib.request.urlopen(sent, timeout=120) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace"), error.headers

    def request(self, *words: Any, **headers: str) -> tuple[int, str]:
        return self.answer(*words, **headers)[:2]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def post(self, name: str, body: object) -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request(f"/gradio_api/call/{name}", data)

    def call(self, name: str, values: object) -> tuple[str, Any]:
        """("complete", outputs) or ("error", message)."""
        status, text = self.post(name, {"data": values})
        assert status == 200, text
        return self.result(name, text)

    def result(self, name: str, text: str) -> tuple[str, Any]:
        _, stream = self.request(f"/gradio_api/call/{name}/{json.loads(text)['event_id']}")
        event, data = "", None
        for line in stream.splitlines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event in ("complete", "error"):
                data = json.loads(line.removeprefix("data: "))
        return event, data["error"] if isinstance(data, dict) else data


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    page = launch(port=0, block=False)
    yield page
    page.close(verbose=False)


@pytest.fixture(scope="module")
def client(page: Any) -> Client:
    return Client(page.local_url)


def test_a_request_is_answered_with_both_films(client: Client) -> None:
    event, (left, right) = client.call("draw", GOOD)
    assert event == "complete"
    assert left.count('class="bfn-frame') == 4
    assert right.count('class="bfn-frame') == 5
    assert client.call("draw", GOOD)[1][0].split("<p class")[1] == left.split("<p class")[1], "the same seed"


def test_the_last_value_of_the_library_is_the_last_picture(client: Client) -> None:
    _, (left, _) = client.call("draw", GOOD)
    shown = left.rsplit("bfn-frame on", 1)[1].split("base64,", 1)[1].split('"', 1)[0]
    model, labels = bfn.load("digits"), torch.arange(4)
    drawn = model.sample(4, "bfn", 4, label=labels, generator=torch.Generator().manual_seed(0))
    assert Image.open(io.BytesIO(base64.b64decode(shown))).tobytes() == sheet(drawn.x).tobytes()


def test_text_and_prompt(client: Client) -> None:
    values = ["text8", 1, *GOOD[2:5], "the cat", *GOOD[6:]]
    event, (left, _) = client.call("draw", values)
    assert event == "complete"
    assert "the cat" in left.rsplit("bfn-frame on", 1)[1]
    assert client.call("draw", [*values[:5], "Köln", *values[6:]]) == (
        "error", "prompt 'Köln': 'K' at position 0 is not among the symbols ' abcdefghijklmnopqrstuvwxyz'; "
        "'_' stands for a character to fill in",
    )  # fmt: skip


def malformed() -> list[tuple[str, object]]:
    """Bodies of wrong requests: 200 and a few."""
    junk: list[object] = [
        None, True, -1, 0.5, 1e308, 10**40, "", "/etc/passwd", "../../../etc/shadow", "file:///etc/passwd", [], {},
        {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
    ]  # fmt: skip
    fitting = {4: (0.5,), 5: (None, ""), 8: (None, ""), **dict.fromkeys((11, 12, 15, 16), (None, 0.5))}
    bodies: list[tuple[str, object]] = [
        ("draw", {"data": [*GOOD[:i], value, *GOOD[i + 1 :]]})
        for i in range(len(GOOD))
        for value in junk
        if value not in fitting.get(i, ()) or isinstance(value, bool)
    ]
    bodies += [("draw", {"data": GOOD[:k]}) for k in range(len(GOOD))]
    bodies += [("plane", {"data": [*PLANE[:i], value, *PLANE[i + 1 :]]}) for i in range(5) for value in junk]
    bodies += [("draw", {"data": [*GOOD[:9], "bfn-solver2", *GOOD[10:]]}), ("draw", {"data": None}), ("draw", {})]
    bodies += [("draw", {"data": [*GOOD[:10], "__import__('os')", *GOOD[11:]]}), ("draw", {"data": "x"}), ("none", {})]
    raw = (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"data": [', b'{"data": [NaN]}', b"[" * 5000, b"%PDF-1.4")
    bodies += [(name, body) for name in ("draw", "plane") for body in raw]
    bodies += [("draw", {"data": ["x" * 2 * MAX_BODY]}), ("draw", {"data": [[[[[[]]]]]]}), ("../draw", {"data": GOOD})]
    return bodies


def test_malformed_requests_get_a_message_each_and_it_goes_on_serving(client: Client) -> None:
    bodies = malformed()
    assert len(bodies) >= 200
    silent = []
    for name, body in bodies:
        status, text = client.post(name, body)
        if status == 200:
            event, message = client.result(name, text)
            clear = event == "error" and isinstance(message, str) and message and "\n" not in message
        else:
            clear = 400 <= status < 500 and bool(text.strip())
        if not clear:
            silent.append((name, str(body)[:200], status, text[:200]))
    assert not silent, silent[:5]
    assert client.call("draw", GOOD)[0] == "complete"


CLOSED = """
/gradio_api/file=/etc/passwd /gradio_api/file=src/bfn/__init__.py /gradio_api/file%3D/etc/passwd /file=/etc/passwd
/gradio_api/file/etc/passwd /assets/../../../../../../etc/passwd /assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd
/static/..%2f..%2f..%2f..%2fetc/passwd /gradio_api/proxy=http://127.0.0.1:1/ /gradio_api/upload /gradio_api/runs
/gradio_api/component_server /gradio_api/deep_link /monitoring /docs /etc/passwd
"""


@pytest.mark.parametrize("path", CLOSED.split())
def test_no_file_and_no_other_service_is_reached(client: Client, path: str) -> None:
    for method in ("GET", "POST"):
        status, text = client.request(path, b"{}" if method == "POST" else None, method)
        assert 400 <= status < 500
        assert "root:" not in text


def test_two_people_at_once(client: Client) -> None:
    alone = client.call("draw", GOOD)[1][1]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda seed: client.call("draw", [*GOOD[:2], seed, *GOOD[3:]]), (0, 7, 0)))
    frames = [answer[1][1].split("bfn-spent")[0] for answer in answers]
    assert frames[0] == frames[2] == alone.split("bfn-spent")[0]
    assert frames[1] != frames[0]


def working() -> int:
    return sum(thread.name == "bfn-app-work" for thread in threading.enumerate())


def test_cancelled_work_stops(client: Client) -> None:
    join = {"data": LONG, "session_hash": "cancelled", "fn_index": draw_index(client)}
    status, text = client.request("/gradio_api/queue/join", json.dumps(join).encode())
    assert status == 200
    event = json.loads(text)["event_id"]
    wait(lambda: working() > 0)
    body = {"session_hash": "cancelled", "fn_index": join["fn_index"], "event_id": event}
    assert client.request("/gradio_api/cancel", json.dumps(body).encode())[0] == 200
    begun = time.monotonic()
    wait(lambda: working() == 0)
    assert time.monotonic() - begun < 30, "all 400 calls of 64 digits take far longer"
    assert client.call("draw", GOOD)[0] == "complete"


def draw_index(client: Client) -> int:
    config = json.loads(client.request("/config")[1])
    return next(int(entry["id"]) for entry in config["dependencies"] if entry["api_name"] == "draw")


def wait(until: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(f"--port {port}: something else listens there", launch, port=port)


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    assert client.url.startswith("http://127.0.0.1:")
    with socket.socket() as other:
        other.bind(("127.0.0.2", client.port))  # would fail if it listened on every address


STRANGE_HOSTS = ("evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{port}", "")


@pytest.mark.parametrize("host", STRANGE_HOSTS)
def test_a_name_that_points_here_does_not_open_the_page(client: Client, host: str) -> None:
    own = {"Host": host.format(port=client.port)}
    for path in ("/", "/config", "/gradio_api/info"):
        status, _, headers = client.answer(path, **own)
        assert status == 403
        assert "content-security-policy" in headers
    assert client.request("/gradio_api/call/draw", json.dumps({"data": GOOD}).encode(), **own)[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_its_own_names_open_it(client: Client, host: str) -> None:
    address = f"{host}:{client.port}"
    assert client.request("/", Host=address, Origin=f"http://{address}")[0] == 200


def test_strangers_are_refused_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Gradio listens before `launch` returns, and so before `protect` is called.
    monkeypatch.setattr("bfn.app.server.protect", lambda *_: None)
    page = launch(port=0, block=False)
    try:
        client = Client(page.local_url)
        assert client.request("/")[0] == 200
        assert client.request("/", Host="evil.example")[0] == 403
        assert client.request("/config", Origin="http://evil.example")[0] == 403
    finally:
        page.close(verbose=False)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "http://localhost"]
)
def test_another_page_gets_nothing_and_is_not_told_that_it_may(client: Client, origin: str) -> None:
    body = json.dumps({"data": GOOD}).encode()
    assert client.request("/gradio_api/call/draw", body, Origin=origin)[0] == 403
    for own in ({}, {"Host": origin.removeprefix("http://")}):
        status, _, headers = client.answer("/config", Origin=origin, **own)
        assert status == 403
        assert not [name for name in headers if name.lower().startswith("access-control-")]
    ask = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert client.request("/gradio_api/call/draw", None, "OPTIONS", **ask)[0] == 403


def test_an_answer_says_what_a_browser_may_do_with_it(client: Client) -> None:
    expected = {"x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer"}
    for path in ("/", "/config", "/nothing"):
        _, _, headers = client.answer(path, Origin=f"http://127.0.0.1:{client.port}")
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not any(other in policy for other in ("http:", "*"))
        assert {name: headers[name] for name in expected} == expected
        assert "access-control-allow-origin" not in headers


def closed_within(connection: socket.socket, seconds: float, drip: bytes = b"") -> bool:
    """Return True if the server ends a connection that sends one byte now and then."""
    end = time.monotonic() + seconds
    connection.settimeout(0.1)
    while time.monotonic() < end:
        try:
            if drip:
                connection.send(drip)
            if not connection.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_slow_connections_are_closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS", 1.0)
    own = b"Host: 127.0.0.1:%d\r\n" % client.port
    begun = {
        "silence": (b"", b""),
        "a slow head": (b"GET / HTTP/1.1\r\n" + own, b"X"),
        "a slow second head": (b"GET /robots.txt HTTP/1.1\r\n" + own + b"\r\n", b"G"),
        "a slow body": (b"POST /gradio_api/call/draw HTTP/1.1\r\nContent-Length: 5000\r\n" + own + b"\r\n", b" "),
    }
    for name, (first, drip) in begun.items():
        connections = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(15)]
        for connection in connections:
            connection.sendall(first)
        with ThreadPoolExecutor(15) as pool:
            ended = list(pool.map(lambda connection, drip=drip: closed_within(connection, 20, drip), connections))
        for connection in connections:
            connection.close()
        assert all(ended), (name, ended)
    assert client.request("/config")[0] == 200


def test_a_reader_that_takes_nothing_in_is_let_go(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS", 1.0)
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", client.port))
        lazy.sendall((b"GET /config HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % client.port) * 400)
        time.sleep(4)
        assert closed_within(lazy, 20), "the server waits for a reader that takes nothing in"


def test_what_nobody_collects_is_dropped_and_delays_nobody(client: Client, page: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "COLLECT_WITHIN", 1.0)
    queue = page._queue
    ids = [json.loads(client.post("draw", {"data": LONG})[1])["event_id"] for _ in range(10)]
    begun = time.monotonic()
    assert client.call("draw", GOOD)[0] == "complete"
    assert time.monotonic() - begun < 60, "one alone of those before it takes longer"
    wait(lambda: working() == 0)
    wait(lambda: not queue.pending_messages_per_session)
    assert not queue.event_ids_to_events.keys() & set(ids)
    assert not queue.pending_event_ids_session
