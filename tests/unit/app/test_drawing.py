"""The playground: drawing, watching and stopping samples, films, letters and limits."""

import re
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from bfn.app import drawing
from bfn.app.drawing import Models
from bfn.app.requests import KEEPS, DrawRequest, Panel
from bfn.core.model import BFN
from bfn.core.solver import plan
from tiny import build


def evaluated(kind: str) -> BFN:
    return build(kind).eval()


def request(**changes: object) -> DrawRequest:
    panels = (Panel("bfn", 4), Panel("auto", 6))
    values = {"model": "m", "n": 3, "seed": 1, "label": None, "guidance": 1.0, "prompt": "", "keep": KEEPS[0]}
    return DrawRequest(**{**values, "picture": 0, "condition": None, "panels": panels, **changes})  # type: ignore[arg-type]


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

    watching = drawing.watched(count)
    assert [next(watching), next(watching)] == [0, 1]
    watching.close()
    assert ended.wait(5)
    assert len(told) < 1000


def test_errors_of_the_work_reach_who_watches() -> None:
    def fail(tell: Callable[[int], None]) -> None:
        tell(1)
        raise ValueError("no")

    watching = drawing.watched(fail)
    assert next(watching) == 1
    with pytest.raises(ValueError) as error:  # noqa: PT011
        next(watching)
    assert str(error.value) == "no"


@pytest.mark.parametrize("kind", ["images", "binary", "text"])
def test_both_panels_start_from_the_same_noise(kind: str) -> None:
    model = evaluated(kind)
    # At the same first time what is shown to the network is the same.
    one, other = (
        list(drawing.draw(model, request(), Panel(name, 5, t_start=0.2), {})) for name in ("auto", "fast-ode")
    )
    assert torch.equal(one[-1].steps[0][1], other[-1].steps[0][1])
    assert not torch.equal(one[-1].steps[-1][1], other[-1].steps[-1][1])
    again = list(drawing.draw(model, request(), Panel("auto", 5, t_start=0.2), {}))
    assert torch.equal(one[-1].steps[-1][2], again[-1].steps[-1][2])


def test_a_dial_counts_only_where_there_is_one() -> None:
    assert drawing.panel_request(Panel("fast-sde", 5, g=3.0)).g == 3.0
    assert drawing.panel_request(Panel("bfn", 5, g=3.0)).g is None


def test_a_film_has_a_frame_a_call_and_shows_the_last() -> None:
    model = evaluated("text")
    *_, view = drawing.draw(model, request(), Panel("auto", 7), {})
    html = drawing.film(view)
    assert html.count('class="bfn-frame') == 7
    assert html.count("bfn-frame on") == 1
    assert "call 7 of 7" in html
    assert "<b>7</b> network calls" in html
    assert f"auto ran {plan(model, 'auto', 7)}" in html
    assert drawing.picked(500)[0] == 0
    assert drawing.picked(500)[-1] == 499
    assert len(drawing.picked(500)) == drawing.MAX_FRAMES == len(set(drawing.picked(500)))


def test_letters_fade_in_and_are_escaped() -> None:
    theta = torch.tensor([[[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1.0]]])
    assert drawing.letters(theta, "<&x") == (
        '<div class="bfn-letters"><p><i class="s9">&lt;</i><i class="s0">&lt;</i><i class="s9">x</i></p></div>'
    )
    assert drawing.numbers(torch.tensor([[0.5, -1.0]])) == "<pre>  0.500  -1.000</pre>"


@pytest.mark.parametrize(("keep", "share"), [*((name, 0.5) for name in KEEPS[1:5]), (KEEPS[5], 0.75), (KEEPS[0], 0)])
def test_masks_keep_their_part(keep: str, share: float) -> None:
    models = Models({"m": evaluated("images")}, {"m": torch.zeros(1, 1, 8, 8)})
    conditions = models.conditions(request(keep=keep))
    assert ("known_mask" in conditions) == (share > 0)
    assert share == 0 or float(conditions["known_mask"].float().mean()) == share


def test_conditions_are_the_arguments_of_sample() -> None:
    images, text = evaluated("images"), evaluated("text")
    pictures = torch.zeros(2, *images.data_shape)
    models = Models({"m": images, "t": text}, {"m": pictures})
    conditions = models.conditions(request(label=2, guidance=2.0, keep="top half", picture=1))
    assert conditions["label"] == 2
    assert conditions["guidance"] == 2.0
    assert conditions["known"].shape == images.data_shape
    assert conditions["known_mask"].any()
    assert models.conditions(request(n=6))["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert models.conditions(request(model="t", label=None)) == {}
    asked = models.conditions(request(model="t", prompt="a_"))
    *_, view = drawing.draw(text, request(model="t"), Panel("auto", 3), asked)
    assert (view.steps[-1][2][:, 0].argmax(-1) == 1).all(), "the second symbol is a"
    assert models.limits["m"].n_pictures == 2
    assert models.limits["t"].length == text.data_shape[0]


def test_solvers_that_a_model_cannot_serve_are_not_offered() -> None:
    names = drawing.usable_solvers(evaluated("images"))
    assert "auto" in names
    assert "bfn-solver++2" in names
    assert "bfn-solver2" not in names, "for discrete data"
    assert "bfn-optimal" not in names, "needs an error curve"


@pytest.mark.parametrize("name", drawing.MIXTURES)
def test_errors_on_mixtures_fall(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "CALLS", (4, 16))
    monkeypatch.setattr(drawing, "PARTICLES", 64)
    monkeypatch.setattr(drawing, "DATA", 256)
    model = drawing.MIXTURES[name]()
    found = {errors.names: errors for errors in drawing.errors(model)}
    fast = next(errors for names, errors in found.items() if "fast-ode" in names)
    first = next(errors for names, errors in found.items() if "bfn-solver1" in names)
    assert fast.of_path[1] < fast.of_path[0] / 5
    assert fast.of_path[1] < first.of_path[1] / 5
    assert not next(errors for names, errors in found.items() if "bfn" in names).of_path, "an SDE has no exact path"
    assert sum(map(len, found)) == len(drawing.usable_solvers(model)), "each solver is in one group"
    assert ("bfn-solver1", "bfn-solver++1") in found


def test_paths_start_from_the_same_noise_and_end_in_the_data() -> None:
    model = drawing.MIXTURES["eight on a ring"]()
    one, other = (drawing.mixture_paths(model, name, 24, 30, 3) for name in ("fast-ode", "unipc3"))
    assert one.shape == (25, 30, 2)
    assert torch.allclose(one[0], other[0], atol=0.2)
    assert one[-1].norm(dim=-1).sub(1).abs().max() < 0.4


def test_the_distance_of_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "PARTICLES", 50)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert drawing.distance(x, drawing.quantiles(x)) == 0
    shift = torch.tensor([3.0, 4.0], dtype=torch.float64)
    # The mean square of a shift's projections is half its square.
    assert drawing.distance(x + shift, drawing.quantiles(x)) == pytest.approx((25 / 2) ** 0.5)


def test_molecules_are_shown_without_padding_drawn_and_judged() -> None:
    model = build("molecules")
    models = Models({"m": model}, {})
    assert models.limits["m"].condition == ("gap", pytest.approx(0.1), pytest.approx(0.4))
    asked = request(n=16, condition=0.25, guidance=2.0)
    conditions = models.conditions(asked)
    assert conditions["condition"] == {"gap": 0.25}
    assert conditions["guidance"] == 2.0
    *_, last = drawing.draw(model, asked, Panel("auto", 3), conditions)
    html = drawing.film(last)
    lengths = [len(re.sub("<[^>]*>", "", row)) for row in re.findall("<p>(.*?)</p>", html)]
    assert lengths == 6 * conditions["lengths"].tolist()  # two pictures of each of three calls
    assert "of 16 are molecules" in html
    assert 'alt="molecules"' in html


def test_without_rdkit_molecules_are_strings_and_a_line(monkeypatch) -> None:
    model = build("molecules")
    asked = request(n=2)
    *_, last = drawing.draw(model, asked, Panel("auto", 2), Models({"m": model}, {}).conditions(asked))
    for name in ["rdkit", *(name for name in sys.modules if name.startswith("rdkit."))]:
        monkeypatch.setitem(sys.modules, name, None)
    html = drawing.film(last)
    assert "rdkit is needed to read molecules: pip install &#x27;bayesian-flow[chem]&#x27;" in html
    assert html.count("<p>") == 8
