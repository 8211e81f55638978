"""Progress of long work, in one place: a bar on a terminal, a line now and then elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Shown = bool | Literal["bar", "lines", "json"]
"""True for what suits the place: a bar on a terminal or in a notebook, lines in a pipe or a file. False for nothing."""
INTERVAL = 10.0
"""Seconds between two lines."""


def style(shown: Shown) -> Literal["bar", "lines", "json"] | None:
    """What is shown, and how; None for nothing."""
    if not isinstance(shown, bool):
        return shown
    if not shown:
        return None
    return "bar" if sys.stderr.isatty() or "ipykernel" in sys.modules else "lines"


class Progress:
    """How far some work is, told on standard error.

        with Progress(n, "sampling", "sample") as progress:
            ...
            progress.update(256)

    total: units of work, None where nobody knows. start: those that are done already. A bar comes after a second and
    goes when the work is done, unless it is to stay; lines come every :data:`INTERVAL`, and one at the end if any came.
    """

    def __init__(
        self,
        total: float | None,
        what: str,
        unit: str,
        shown: Shown = True,
        *,
        start: float = 0,
        stays: bool = False,
        interval: float = INTERVAL,
    ) -> None:
        self.total, self.what, self.unit, self.n, self.first = total, what, unit, start, start
        self.style, self.interval = style(shown), interval
        self.notes: dict[str, Any] = {}
        self.began = self._told = time.monotonic()
        self._lines, self._bar = 0, None
        if self.style == "bar":
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=total, desc=what, unit=unit, initial=start, delay=0.0 if stays else 1.0, leave=stays,
                smoothing=0.05, file=sys.stderr, unit_scale=bool(total and total >= 1e6),
            )  # fmt: skip

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: float = 1) -> None:
        """So many more units are done."""
        self.n += count
        if self._bar is not None:
            self._bar.update(round(self.n) - self._bar.n)
        elif self.style is not None and time.monotonic() - self._told >= self.interval:
            self._tell()

    def note(self, **values: Any) -> None:
        """Figures to show beside it, such as the loss."""
        self.notes |= values
        if self._bar is not None:
            self._bar.set_postfix(values)

    def describe(self, what: str) -> None:
        """What is being done now."""
        self.what = what
        if self._bar is not None:
            self._bar.set_description(what)

    def refresh(self) -> None:
        """Show the time that has passed where nothing can be counted."""
        self.update(0)
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """The work is done, or will not be."""
        if self._bar is not None:
            self._bar.close()
        elif self.style is not None and self._lines:
            self._tell()
        self.style = self._bar = None

    def _tell(self) -> None:
        self._told, self._lines = time.monotonic(), self._lines + 1
        seconds = self._told - self.began
        speed = (self.n - self.first) / seconds if seconds > 0 else 0.0
        left = (self.total - self.n) / speed if self.total is not None and speed > 0 else math.nan
        if self.style == "json":
            values = {"progress": self.what, "done": self.n, "total": self.total, "unit": self.unit}
            values |= {"seconds": round(seconds, 1), "seconds_left": None if math.isnan(left) else round(left, 1)}
            print(json.dumps(values | self.notes, default=str), file=sys.stderr, flush=True)
            return
        unit = self.unit + ("es" if self.unit.endswith("ch") else "s")
        done = f"{self.n:,.0f}" if self.total is None else f"{self.n:,.0f} of {self.total:,.0f}"
        share = "" if not self.total else f" ({100 * self.n / self.total:.0f} %)"
        rest = "" if math.isnan(left) or not left else f", {_time(left)} left"
        told = "".join(f", {name} {value}" for name, value in self.notes.items())
        line = f"{self.what}: {done} {unit}{share} in {_time(seconds)}, {speed:.3g} a second{rest}{told}"
        print(line, file=sys.stderr, flush=True)


def say(line: str, shown: Shown = True, file: Any = None) -> None:
    """A line to the user, on standard output unless said otherwise, that tears no bar; for programs one of JSON."""
    if shown == "json":
        print(json.dumps({"kind": "message", "text": line}), file=file, flush=True)
    else:
        from tqdm.auto import tqdm

        tqdm.write(line, file=file)


def over(items: Sequence[T], what: str, unit: str, shown: Shown = True) -> Iterable[T]:
    """The items one after another, with progress."""
    return _over(items, what, unit, shown) if shown else items


def _over(items: Sequence[T], what: str, unit: str, shown: Shown) -> Iterator[T]:
    with Progress(len(items), what, unit, shown) as progress:
        for item in items:
            yield item
            progress.update()


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
