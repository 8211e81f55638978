"""The work behind the page: watched and stopped, from the same noise; films, letters, the gate, the plane."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from bfn.app import figures, gate, plane, stock, work
from bfn.app.requests import KEEPS, Draw, Panel
from bfn.loaded import Loaded
from tiny import build


def loaded_model(kind: str) -> Loaded:
    model, extras = build(kind)
    return Loaded(model.eval(), extras)


def request(**changes: object) -> Draw:
    panels = (Panel("bfn", 4), Panel("auto", 6))
    values = {"model": "m", "n": 3, "seed": 1, "label": None, "guidance": 1.0, "prompt": "", "keep": KEEPS[0]}
    return Draw(**{**values, "picture": 0, "panels": panels, **changes})  # type: ignore[arg-type]


def test_closing_stops_the_work_at_the_next_thing_it_tells() -> None:
    told: list[int] = []
    ended = threading.Event()

    def count(tell: Callable[[int], None]) -> None:
        try:
            for i in range(10_000):
                tell(i)
                told.append(i)
                time.sleep(0.005)
        finally:
            ended.set()

    watching = work.watched(count)
    assert [next(watching), next(watching)] == [0, 1]
    watching.close()
    assert ended.wait(5)
    assert len(told) < 1000


def test_errors_of_the_work_reach_who_watches() -> None:
    def fail(tell: Callable[[int], None]) -> None:
        tell(1)
        raise ValueError("no")

    watching = work.watched(fail)
    assert next(watching) == 1
    with pytest.raises(ValueError, match=r"^no$"):
        next(watching)


@pytest.mark.parametrize("kind", ["images", "binary", "text"])
def test_both_panels_start_from_the_same_noise(kind: str) -> None:
    loaded = loaded_model(kind)
    # At the same first time what is shown to the network is the same.
    one, other = (list(work.draw(loaded, request(), Panel(name, 5, t_start=0.2), {})) for name in ("auto", "fast-ode"))
    assert torch.equal(one[-1].steps[0][1], other[-1].steps[0][1])
    assert not torch.equal(one[-1].steps[-1][1], other[-1].steps[-1][1])
    again = list(work.draw(loaded, request(), Panel("auto", 5, t_start=0.2), {}))
    assert torch.equal(one[-1].steps[-1][2], again[-1].steps[-1][2])


def test_a_view_after_each_call_and_one_at_the_end() -> None:
    views = list(work.draw(loaded_model("images"), request(), Panel("fast-ode", 6), {}))
    assert [view.finished for view in views] == [False] * 6 + [True]
    assert len(views[-1].steps) == 6
    assert views[-1].seconds > 0


def test_a_dial_counts_only_where_there_is_one() -> None:
    assert work.dial(Panel("fast-sde", 5, g=3.0)) == 3.0
    assert work.dial(Panel("bfn", 5, g=3.0)) is None


def test_a_film_has_a_frame_a_call_and_shows_the_last() -> None:
    loaded = loaded_model("text")
    *_, view = work.draw(loaded, request(), Panel("auto", 7), {})
    html = figures.film(view)
    assert html.count('class="bfn-frame') == 7
    assert html.count("bfn-frame on") == 1
    assert "call 7 of 7" in html
    assert "<b>7</b> network calls" in html
    assert figures.picked(500)[0] == 0
    assert figures.picked(500)[-1] == 499
    assert len(figures.picked(500)) == figures.MAX_FRAMES == len(set(figures.picked(500)))


def test_letters_fade_in_and_are_escaped() -> None:
    theta = torch.tensor([[[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1.0]]])
    assert figures.letters(theta, "<&x") == (
        '<div class="bfn-letters"><p><i class="s9">&lt;</i><i class="s0">&lt;</i><i class="s9">x</i></p></div>'
    )


def test_models_of_numbers_are_shown_as_numbers() -> None:
    assert figures.numbers(torch.tensor([[0.5, -1.0]])) == "<pre>  0.500  -1.000</pre>"


@pytest.mark.parametrize(("keep", "share"), [*((name, 0.5) for name in KEEPS[1:5]), (KEEPS[5], 0.75), (KEEPS[0], 0)])
def test_masks_keep_their_part(keep: str, share: float) -> None:
    mask = stock.mask(keep, torch.zeros(1, 8, 8))
    assert float(mask.float().mean()) == share


def test_conditions_are_the_arguments_of_sample() -> None:
    images, text = loaded_model("images"), loaded_model("text")
    pictures = torch.zeros(2, *images.model.data_shape)
    shelf = stock.Stock({"m": images, "t": text}, {"m": pictures})
    conditions = shelf.conditions(request(label=2, guidance=2.0, keep="top half", picture=1))
    assert conditions["label"].tolist() == [2, 2, 2]
    assert conditions["guidance"] == 2.0
    assert conditions["known"].shape == images.model.data_shape
    assert conditions["mask"].any()
    assert shelf.conditions(request(n=6))["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert shelf.conditions(request(model="t", label=None)) == {}
    asked = shelf.conditions(request(model="t", prompt="a_"))
    *_, view = work.draw(text, request(model="t"), Panel("auto", 3), asked)
    assert (view.steps[-1][2][:, 0].argmax(-1) == 1).all(), "the second symbol is a"
    assert shelf.facts["m"].n_pictures == 2
    assert shelf.facts["t"].length == text.model.data_shape[0]


def test_solvers_that_a_model_cannot_serve_are_not_offered() -> None:
    names = work.fitting(loaded_model("images").model)
    assert "auto" in names
    assert "bfn-solver++2" in names
    assert "bfn-solver2" not in names, "for discrete data"
    assert "bfn-optimal" not in names, "needs an error curve"


@pytest.mark.parametrize(
    ("path", "opens"),
    [
        ("/", True),
        ("/assets/index.js", True),
        ("/gradio_api/call/draw", True),
        ("/gradio_api/queue/join", True),
        ("/gradio_api/upload", False),
        ("/gradio_api/file=/etc/passwd", False),
        ("/gradio_api/file/etc/passwd", False),
        ("/gradio_api/proxy=http://example.org", False),
        ("/gradio_api/component_server", False),
        ("/gradio_api/deep_link", False),
        ("/monitoring", False),
        ("/etc/passwd", False),
    ],
)
def test_only_the_pages_own_routes_are_open(path: str, opens: bool) -> None:
    assert gate.opens(path) is opens


@pytest.mark.parametrize("name", plane.MIXTURES)
def test_errors_in_the_plane_fall(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "CALLS", (4, 16))
    monkeypatch.setattr(plane, "PARTICLES", 64)
    monkeypatch.setattr(plane, "DATA", 256)
    model = plane.MIXTURES[name]()
    found = {errors.names: errors for errors in plane.errors(model)}
    fast = next(errors for names, errors in found.items() if "fast-ode" in names)
    first = next(errors for names, errors in found.items() if "bfn-solver1" in names)
    assert fast.of_path[1] < fast.of_path[0] / 5
    assert fast.of_path[1] < first.of_path[1] / 5
    assert not next(errors for names, errors in found.items() if "bfn" in names).of_path, "an SDE has no exact path"
    assert sum(map(len, found)) == len(work.fitting(model)), "each solver is in one group"
    assert ("bfn-solver1", "bfn-solver++1") in found


def test_ways_start_from_the_same_noise_and_end_in_the_data() -> None:
    model = plane.MIXTURES["eight on a ring"]()
    one, other = (plane.ways(model, name, 24, 30, 3) for name in ("fast-ode", "unipc3"))
    assert one.shape == (25, 30, 2)
    assert torch.allclose(one[0], other[0], atol=0.2)
    assert one[-1].norm(dim=-1).sub(1).abs().max() < 0.4


def test_the_distance_of_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "PARTICLES", 50)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert plane.distance(x, plane.quantiles(x)) == 0
    shift = torch.tensor([3.0, 4.0], dtype=torch.float64)
    # The mean square of a shift's projections is half its square.
    assert plane.distance(x + shift, plane.quantiles(x)) == pytest.approx((25 / 2) ** 0.5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"data": ["mnist", 1, 0.5, null, true, ["bfn"]], "session_hash": "x"}', None),
        (b"{}", None),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"data": [NaN]}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not an object"),
        (b'{"data": 1}', "not an object"),
        (b'{"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]}', "hold an object"),
        (b'{"data": [[[1]]]}', "list of lists"),
    ],
)
def test_bodies_hold_plain_values(body: bytes, says: str | None) -> None:
    found = gate.objection(body)
    assert found is None if says is None else says in str(found)
