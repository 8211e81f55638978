"""Progress of long work: a bar on a terminal, lines in a pipe or a file, JSON lines for programs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Shown = bool | Literal["bar", "lines", "json"]
"""Display of progress. True chooses a bar on a terminal or in a notebook and lines elsewhere; False shows nothing."""
INTERVAL = 10.0
"""Seconds between two lines of progress."""


def style(shown: Shown) -> Literal["bar", "lines", "json"] | None:
    """Return the style of progress that suits standard error; None if nothing is shown."""
    if not isinstance(shown, bool):
        return shown
    if not shown:
        return None
    return "bar" if sys.stderr.isatty() or "ipykernel" in sys.modules else "lines"


class Progress:
    """Progress of some work, shown on standard error.

        with Progress(n, "sampling", "sample") as progress:
            ...
            progress.update(256)

    Lines are printed at most every ``INTERVAL``, and once more at the end if any was printed.

    Args:
        total: units of work; None if unknown.
        what: what is being done, such as "sampling".
        unit: name of a unit, in the singular.
        shown: whether and how progress is shown.
        start: units that are done already.
        stays: whether a bar appears at once and stays at the end. Otherwise it appears after a second.
    """

    def __init__(
        self, total: float | None, what: str, unit: str, shown: Shown = True, *, start: float = 0, stays: bool = False
    ) -> None:
        self.total, self.what, self.unit, self.n, self.first = total, what, unit, start, start
        self.style = style(shown)
        self.notes: dict[str, Any] = {}
        self.began = self._printed = time.monotonic()
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
        """Count further units as done."""
        self.n += count
        if self._bar is not None:
            self._bar.update(round(self.n) - self._bar.n)
        elif self.style is not None and time.monotonic() - self._printed >= INTERVAL:
            self._print()

    def note(self, **values: Any) -> None:
        """Show values beside the progress, such as the loss."""
        self.notes |= values
        if self._bar is not None:
            self._bar.set_postfix(values)

    def set_total(self, total: float | None) -> None:
        """Change the units of work, for work whose length is only estimated at its start."""
        self.total = total
        if self._bar is not None:
            self._bar.total = total
            self._bar.refresh()

    def describe(self, what: str) -> None:
        """Change the description of the work."""
        self.what = what
        if self._bar is not None:
            self._bar.set_description(what)

    def refresh(self) -> None:
        """Show the elapsed time when no units were completed."""
        self.update(0)
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """Remove the bar, or print the last line."""
        if self._bar is not None:
            self._bar.close()
        elif self.style is not None and self._lines:
            self._print()
        self.style = self._bar = None

    def _print(self) -> None:
        self._printed, self._lines = time.monotonic(), self._lines + 1
        seconds = self._printed - self.began
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
        notes = "".join(f", {name} {value}" for name, value in self.notes.items())
        line = f"{self.what}: {done} {unit}{share} in {_time(seconds)}, {speed:.3g} a second{rest}{notes}"
        print(line, file=sys.stderr, flush=True)


def say(line: str, shown: Shown = True, file: Any = None) -> None:
    """Print a line without breaking a progress bar, or a JSON line if progress is shown as JSON.

    Args:
        line: the line.
        shown: how progress is shown.
        file: stream to print to; standard output if None.
    """
    if shown == "json":
        print(json.dumps({"kind": "message", "text": line}), file=file, flush=True)
    else:
        from tqdm.auto import tqdm

        tqdm.write(line, file=file)


def over(items: Sequence[T], what: str, unit: str, shown: Shown = True) -> Iterator[T]:
    """Iterate over the items and show progress."""
    with Progress(len(items), what, unit, shown) as progress:
        for item in items:
            yield item
            progress.update()


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
