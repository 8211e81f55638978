"""Requests: what passes is within bounds, all else is one clear line."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfn.app import requests
from bfn.app.requests import (
    DRAW,
    KEEPS,
    MAX_CALLS,
    MAX_SEED,
    DrawRequest,
    Limits,
    MixtureRequest,
    Panel,
    RequestError,
    RowsRequest,
    read_draw,
    read_mixture,
    read_rows,
    shown,
)  # fmt: skip
from messages import refused

IMAGES = Limits("images", ("bfn", "auto"), classes=tuple("0123456789"), n_pictures=5)
TEXT = Limits("text", ("bfn", "auto"), length=8)
MOLECULES = Limits("text", ("bfn", "auto"), length=8, condition=("gap", 0.1, 0.4))
KNOWN = {"mnist": IMAGES, "text8": TEXT, "qm9": MOLECULES}
GOOD = ["mnist", 16, 0, "all", 1, "", "nothing", 0, None, "bfn", 10, "own", "own", "auto", 5, 2.5, 0.01]


def test_a_good_request_is_read_as_it_is() -> None:
    assert read_draw(GOOD, KNOWN) == DrawRequest(
        "mnist", 16, 0, None, 1.0, "", "nothing", 0, None, (Panel("bfn", 10), Panel("auto", 5, 2.5, 0.01))
    )


def changed(values: list[object], **changes: object) -> list[object]:
    """Return the values of a request with some of them replaced."""
    return [changes.get(name, old) for name, old in zip(DRAW, values, strict=True)]


def test_numbers_that_json_made_floats_stay_whole() -> None:
    assert read_draw(changed(GOOD, n=16.0), KNOWN) == read_draw(GOOD, KNOWN)


@pytest.mark.parametrize(("label", "expected"), [("all", None), ("none", -1), ("7", 7)])
def test_labels(label: str, expected: int | None) -> None:
    assert read_draw(changed(GOOD, label=label), KNOWN).label == expected


def test_what_a_model_has_not_cannot_be_asked_of_it() -> None:
    text = ["text8", 4, *GOOD[2:]]
    assert read_draw(text, KNOWN).prompt == ""
    for change in (
        {"label": "3"}, {"keep": "top half"}, {"prompt": "more than eight"}, {"picture": 1}, {"condition": 0.2},
    ):  # fmt: skip
        refused(f"^{next(iter(change))}=", read_draw, changed(text, **change), KNOWN)


def test_a_number_may_be_asked_for_within_its_range() -> None:
    molecules = ["qm9", 4, *GOOD[2:]]
    for value, read in ((0.25, 0.25), ("", None), (None, None)):
        assert read_draw(changed(molecules, condition=value), KNOWN).condition == read
    for value in (0.5, math.nan, "0.2", True):
        refused(r"^condition=", read_draw, changed(molecules, condition=value), KNOWN)


WRONG = [
    ("model", "../../etc/passwd"), ("model", None), ("model", ["mnist"]), ("model", {"path": "/"}), ("model", ""),
    ("n", 0), ("n", 65), ("n", 1.5), ("n", "16"), ("n", True), ("n", math.nan), ("n", None), ("n", 10**4000),
    ("seed", -1), ("seed", MAX_SEED + 1), ("seed", math.inf), ("seed", "0"), ("seed", [0]),
    ("label", 3), ("label", "10"), ("label", "-1"), ("label", None),
    ("guidance", -0.1), ("guidance", 11), ("guidance", math.nan), ("guidance", "two"),
    ("prompt", 5), ("prompt", "a\nb"), ("prompt", "x" * 10**6), ("prompt", "\x00"),
    ("keep", "everything"), ("keep", None), ("picture", 5), ("picture", -1), ("picture", "/etc/passwd"),
    ("solver of panel A", "fast-ode"), ("solver of panel A", 0), ("solver of panel B", "__class__"),
    ("calls of panel A", 0), ("calls of panel A", MAX_CALLS + 1), ("calls of panel B", 1e308), ("calls of panel B", {}),
    ("g of panel A", -1), ("g of panel A", math.inf), ("g of panel B", "0; rm"), ("g of panel B", [1]),
    ("t_start of panel A", 1), ("t_start of panel A", -1e-9), ("t_start of panel B", math.nan),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}={shown(value)}" for field, value in WRONG])
def test_a_wrong_value_is_named_in_one_short_line(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        read_draw(changed(GOOD, **{field: value}), KNOWN)
    line = str(caught.value)
    assert line.startswith(f"{field}=")
    assert "expected" in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("count", [0, 1, len(GOOD) - 1, len(GOOD) + 1])
def test_missing_and_surplus_fields(count: int) -> None:
    refused(f"^{count} settings: expected {len(GOOD)}: model, n, seed", read_draw, [*GOOD, 0][:count], KNOWN)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # which a busy machine alone fails
@given(st.lists(JSON, min_size=len(GOOD), max_size=len(GOOD)), st.sets(st.integers(0, len(GOOD) - 1)))
def test_whatever_comes_is_refused_or_within_bounds(garbage: list[object], kept: set[int]) -> None:
    values = [GOOD[i] if i in kept else garbage[i] for i in range(len(GOOD))]
    try:
        draw = read_draw(values, KNOWN)
    except RequestError:
        return
    limits = KNOWN[draw.model]
    assert 1 <= draw.n <= requests.MAX_SAMPLES[limits.form]
    assert 0 <= draw.seed <= MAX_SEED
    assert 0 <= draw.guidance <= requests.MAX_GUIDANCE
    assert len(draw.prompt) <= limits.length
    assert draw.keep in KEEPS
    for panel in draw.panels:
        assert panel.solver in limits.solvers
        assert 1 <= panel.calls <= MAX_CALLS
        assert panel.g is None or 0 <= panel.g <= requests.MAX_DIAL
        assert panel.t_start is None or 0 <= panel.t_start <= requests.MAX_START
    json.dumps([panel.g for panel in draw.panels], allow_nan=False)


PLANE = ["a ring", ["auto", "bfn"], 8, 40, 0]
ROWS = ["adult", "education=Doctorate; age>40;", 20, 5, 0]


@pytest.mark.parametrize(
    ("read", "good", "expected", "wrong"),
    [
        (
            lambda values: read_mixture(values, ("a ring",), ("bfn", "auto")), PLANE,
            MixtureRequest("a ring", ("auto", "bfn"), 8, 40, 0),
            [(0, "/"), (1, []), (1, ["auto"] * 5), (1, "auto"), (1, [None]), (2, 1), (3, 10**9), (4, -1)],
        ),
        (
            lambda values: read_rows(values, ["adult"]), ROWS,
            RowsRequest("adult", ("education=Doctorate", "age>40"), 20, 5, 0),
            [(0, "mnist"), (1, "x" * 301), (1, "a\nb"), (1, 3), (2, 0), (3, 101), (4, -1)],
        ),
    ],
)  # fmt: skip
def test_the_plane_and_rows(read, good, expected, wrong) -> None:
    assert read(good) == expected
    for place, value in wrong:
        refused("expected", read, [value if i == place else old for i, old in enumerate(good)])
    refused(r"^4 settings", read, good[:4])
