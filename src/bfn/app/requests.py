"""Wrong input as a message on the page."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import gradio as gr

from bfn.core.errors import UserError


@contextmanager
def spoken() -> Iterator[None]:
    """Wrong input, here or in the library, becomes a message on the page."""
    try:
        yield
    except UserError as error:
        line = " ".join(str(error).split())
        raise gr.Error(html.escape(line, quote=False), print_exception=False) from None


OWN = "own"
"""Stands for the solver's own dial or start."""
MAX_CALLS = 200
MAX_SEED = 2**31 - 1
MAX_SAMPLES = {"images": 64, "text": 16, "numbers": 64}
USUAL_SAMPLES = {"images": 16, "text": 4, "numbers": 16}
MAX_DIAL = 100.0
MAX_START = 0.9
MAX_GUIDANCE = 10.0
MAX_PARTICLES = 200
MAX_PATHS = 4
MAX_ROWS, MAX_GIVEN = 100, 300
KEEPS = ("nothing", "top half", "bottom half", "left half", "right half", "all but the middle")
"""Parts of a known picture that a sample is grown around."""


class RequestError(UserError):
    """A request that cannot be served; the message is one clear line."""


@dataclass(frozen=True)
class Limits:
    """What may be asked of a model.

    form: "text", "images" or "numbers". solvers: names that may be asked for. classes: names of those it knows.
    length: symbols of a text. n_pictures: known pictures that samples can be grown around. condition: the name, lowest
    and highest value of a number that samples may be asked for by.
    """

    form: str
    solvers: tuple[str, ...]
    classes: tuple[str, ...] = ()
    length: int = 0
    n_pictures: int = 0
    condition: tuple[str, float, float] | None = None


@dataclass(frozen=True)
class Panel:
    """One panel's settings: solver, network calls, dial and start (None: the solver's own)."""

    solver: str
    calls: int
    g: float | None = None
    t_start: float | None = None


@dataclass(frozen=True)
class DrawRequest:
    """Samples of one model, twice, from the same noise.

    label: the number of a class, -1 for none, None for all in turn. guidance: 1 leaves the model's own prediction.
    prompt: known symbols. keep, picture: the part that is known of which picture. condition: the number that samples
    are asked for by, None to draw it as the data have it.
    """

    model: str
    n: int
    seed: int
    label: int | None
    guidance: float
    prompt: str
    keep: str
    picture: int
    condition: float | None
    panels: tuple[Panel, Panel]


@dataclass(frozen=True)
class MixtureRequest:
    """Solvers on an exact model in the plane: whose paths to draw, from how many starts, with how many calls."""

    mixture: str
    solvers: tuple[str, ...]
    calls: int
    particles: int
    seed: int


@dataclass(frozen=True)
class RowsRequest:
    """Rows of a table. given: conditions on their cells, as the library reads them."""

    table: str
    given: tuple[str, ...]
    calls: int
    n: int
    seed: int


SHARED = tuple(field.name for field in fields(DrawRequest) if field.name != "panels")
EACH = tuple(field.name for field in fields(Panel))
DRAW = (*SHARED, *(f"{name} of panel {side}" for side in "AB" for name in EACH))
MIXTURE = tuple(field.name for field in fields(MixtureRequest))
ROWS = tuple(field.name for field in fields(RowsRequest))


def read_draw(values: Sequence[object], known: Mapping[str, Limits]) -> DrawRequest:
    """The settings in the order of :data:`DRAW`: those that the panels share, then each panel's."""
    given = _named(DRAW, values)
    model = choice(given, "model", known)
    limits = known[model]
    label = choice(given, "label", ("all", "none", *map(str, range(len(limits.classes)))))
    return DrawRequest(
        model,
        whole(given, "n", 1, MAX_SAMPLES[limits.form]),
        whole(given, "seed", 0, MAX_SEED),
        None if label == "all" else -1 if label == "none" else int(label),
        number(given, "guidance", 0, MAX_GUIDANCE),
        text(given, "prompt", limits.length),
        choice(given, "keep", KEEPS if limits.n_pictures else KEEPS[:1]),
        whole(given, "picture", 0, max(0, limits.n_pictures - 1)),
        _condition(given, limits),
        (_panel(given, "A", limits), _panel(given, "B", limits)),
    )


def _condition(given: Mapping[str, object], limits: Limits) -> float | None:
    value = given.get("condition")
    if value in (None, ""):
        return None
    if limits.condition is None:
        raise RequestError(f"condition={shown(value)}: this model is asked for by no number; expected none")
    return number(given, "condition", *limits.condition[1:])


def _panel(given: Mapping[str, object], side: str, limits: Limits) -> Panel:
    solver, calls, g, t_start = (f"{name} of panel {side}" for name in EACH)
    return Panel(
        choice(given, solver, limits.solvers),
        whole(given, calls, 1, MAX_CALLS),
        _or_own(given, g, MAX_DIAL),
        _or_own(given, t_start, MAX_START),
    )


def read_mixture(values: Sequence[object], mixtures: Collection[str], solvers: Collection[str]) -> MixtureRequest:
    """The settings in the order of :data:`MIXTURE`."""
    given = _named(MIXTURE, values)
    chosen = given["solvers"]
    if not isinstance(chosen, list) or not 1 <= len(chosen) <= MAX_PATHS:
        raise RequestError(f"solvers={shown(chosen)}: expected a list of 1 to {MAX_PATHS} names")
    return MixtureRequest(
        choice(given, "mixture", mixtures),
        tuple(choice({"solvers": name}, "solvers", solvers) for name in chosen),
        whole(given, "calls", 2, MAX_CALLS),
        whole(given, "particles", 1, MAX_PARTICLES),
        whole(given, "seed", 0, MAX_SEED),
    )


def read_rows(values: Sequence[object], tables: Collection[str]) -> RowsRequest:
    """The settings in the order of :data:`ROWS`; conditions are one line, with ; between them."""
    given = _named(ROWS, values)
    conditions = [one.strip() for one in text(given, "given", MAX_GIVEN).split(";")]
    return RowsRequest(
        choice(given, "table", tables),
        tuple(one for one in conditions if one),
        whole(given, "calls", 1, MAX_CALLS),
        whole(given, "n", 1, MAX_ROWS),
        whole(given, "seed", 0, MAX_SEED),
    )


def choice(given: Mapping[str, object], name: str, allowed: Collection[str]) -> str:
    """A name from a fixed list."""
    value = given.get(name)
    if not isinstance(value, str) or value not in allowed:
        raise RequestError(f"{name}={shown(value)}: expected one of {', '.join(allowed)}")
    return value


def whole(given: Mapping[str, object], name: str, low: int, high: int) -> int:
    """A whole number within bounds; JSON does not tell 10.0 from 10."""
    value = number(given, name, low, high)
    if value != int(value):
        raise RequestError(f"{name}={shown(given[name])}: expected a whole number from {low} to {high}")
    return int(value)


def number(given: Mapping[str, object], name: str, low: float, high: float) -> float:
    """A finite number within bounds."""
    value = given.get(name)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not low <= value <= high:  # type: ignore[operator]
        raise RequestError(f"{name}={shown(value)}: expected a number from {low} to {high}")
    return float(value)  # type: ignore[arg-type]


def text(given: Mapping[str, object], name: str, length: int) -> str:
    """A string of bounded length on one line."""
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > length or not value.isprintable():
        raise RequestError(f"{name}={shown(value)}: expected a line of at most {length} symbols")
    return value


def shown(value: object) -> str:
    """A value short enough for one line. A whole number of a million digits would take long to write down."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**12:
        digits = round(value.bit_length() * math.log10(2))
        return f"a whole number of about {digits} digits"
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    line = repr(value[:40] if isinstance(value, str) else value)
    return line if len(line) <= 60 else f"{line[:57]}..."


def _named(names: Sequence[str], values: Sequence[object]) -> dict[str, object]:
    if len(values) != len(names):
        raise RequestError(f"{len(values)} settings: expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _or_own(given: Mapping[str, object], name: str, high: float) -> float | None:
    return None if given.get(name) in (None, OWN) else number(given, name, 0, high)
