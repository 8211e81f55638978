"""Requests of the page: their fields, their bounds, and reading them from what the browser sends."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import gradio as gr

from bfn.core.errors import UserError


@contextmanager
def errors_on_page() -> Iterator[None]:
    """Show a UserError, of this module or of the library, as a message on the page."""
    try:
        yield
    except UserError as error:
        line = " ".join(str(error).split())
        raise gr.Error(html.escape(line, quote=False), print_exception=False) from None


OWN = "own"
"""Value of a dial or a start that leaves it to the solver."""
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
"""Parts of a known picture that samples can keep."""


class RequestError(UserError):
    """A request with a value out of bounds."""


@dataclass(frozen=True)
class Limits:
    """The requests that a model can serve.

    Args:
        form: "text", "images" or "numbers".
        solvers: names of the solvers that work with the model.
        classes: names of its classes.
        length: maximum number of characters of a text.
        n_pictures: number of known pictures.
        condition: name, lowest and highest value of a number that samples can be conditioned on.
    """

    form: str
    solvers: tuple[str, ...]
    classes: tuple[str, ...] = ()
    length: int = 0
    n_pictures: int = 0
    condition: tuple[str, float, float] | None = None

    @property
    def is_text(self) -> bool:
        """True if samples are text."""
        return self.form == "text"

    @property
    def has_conditions(self) -> bool:
        """True if there are conditions that guidance can strengthen."""
        return bool(self.classes) or self.condition is not None


@dataclass(frozen=True)
class Panel:
    """Settings of a panel.

    Args:
        solver: name of the solver.
        calls: number of network calls.
        g: stochasticity; None for the solver's own.
        t_start: time at which the grid starts; None for the solver's own.
    """

    solver: str
    calls: int
    g: float | None = None
    t_start: float | None = None


@dataclass(frozen=True)
class DrawRequest:
    """Samples of one model, drawn in two panels from the same noise.

    Args:
        model: name of the model.
        n: number of samples.
        seed: seed of the noise.
        label: number of a class, -1 for none, None for all classes in turn.
        guidance: scale of the conditions; 1 leaves the predictions unchanged.
        prompt: known characters.
        keep: the part of a picture that is known.
        picture: number of this picture.
        condition: a number that samples are conditioned on; None to draw it.
        panels: settings of both panels.
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
    """Paths of solvers on an exact model in the plane."""

    mixture: str
    solvers: tuple[str, ...]
    calls: int
    particles: int
    seed: int


@dataclass(frozen=True)
class RowsRequest:
    """Rows of a table; ``given`` are conditions on their cells, as the library reads them."""

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
    """Read the values of a request for samples, in the order of ``DRAW``."""
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
    """Return the number that samples are conditioned on, if any."""
    value = given.get("condition")
    if value in (None, ""):
        return None
    if limits.condition is None:
        raise RequestError(f"condition={shown(value)}: this model has no condition that is a number; leave it out")
    return number(given, "condition", *limits.condition[1:])


def _panel(given: Mapping[str, object], side: str, limits: Limits) -> Panel:
    """Return the settings of one panel."""
    solver, calls, g, t_start = (f"{name} of panel {side}" for name in EACH)
    return Panel(
        choice(given, solver, limits.solvers),
        whole(given, calls, 1, MAX_CALLS),
        _or_own(given, g, MAX_DIAL),
        _or_own(given, t_start, MAX_START),
    )


def read_mixture(values: Sequence[object], mixtures: Collection[str], solvers: Collection[str]) -> MixtureRequest:
    """Read the values of a request for paths, in the order of ``MIXTURE``."""
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
    """Read the values of a request for rows, in the order of ``ROWS``. Conditions are separated by semicolons."""
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
    """Return a name from a fixed list."""
    value = given.get(name)
    if not isinstance(value, str) or value not in allowed:
        raise RequestError(f"{name}={shown(value)}: expected one of {', '.join(allowed)}")
    return value


def whole(given: Mapping[str, object], name: str, low: int, high: int) -> int:
    """Return a whole number within bounds. JSON does not distinguish 10.0 from 10."""
    value = number(given, name, low, high)
    if value != int(value):
        raise RequestError(f"{name}={shown(given[name])}: expected a whole number from {low} to {high}")
    return int(value)


def number(given: Mapping[str, object], name: str, low: float, high: float) -> float:
    """Return a finite number within bounds."""
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name}={shown(value)}: expected a number from {low} to {high}")
    return float(value)


def text(given: Mapping[str, object], name: str, length: int) -> str:
    """Return a string of bounded length on one line."""
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > length or not value.isprintable():
        raise RequestError(f"{name}={shown(value)}: expected a line of at most {length} symbols")
    return value


def shown(value: object) -> str:
    """Return a value in at most 60 characters. Very large whole numbers are not written out, which would take long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**12:
        digits = round(value.bit_length() * math.log10(2))
        return f"a whole number of about {digits} digits"
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    line = repr(value[:40] if isinstance(value, str) else value)
    return line if len(line) <= 60 else f"{line[:57]}..."


def _named(names: Sequence[str], values: Sequence[object]) -> dict[str, object]:
    """Return the values by name."""
    if len(values) != len(names):
        raise RequestError(f"{len(values)} settings: expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _or_own(given: Mapping[str, object], name: str, high: float) -> float | None:
    """Return a number, or None if it is left to the solver."""
    return None if given.get(name) in (None, OWN) else number(given, name, 0, high)
