"""Discrete Bayesian networks in files: the Bayesian interchange format (.bif, .bif.gz).

network NAME { ... }
variable A { type discrete [ 2 ] { yes, no }; }
probability ( A | B, C ) { ( yes, low ) 0.2, 0.8; ... }      or  { table 0.2, 0.8; }, or { default 0.5, 0.5; }
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bfn.data.bounds import open_file
from bfn.errors import UserError, did_you_mean

__all__ = ["Node", "read_bif"]

MOST_BYTES = 64 << 20
MOST_NODES, MOST_LEVELS, MOST_NUMBERS = 10_000, 10_000, 10_000_000
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"([^"\n]*)"|[{}()\[\],;|]|[^\s{}()\[\],;|"]+|\n|[^\S\n]+', re.DOTALL)


@dataclass(frozen=True, eq=False)
class Node:
    """A variable: its levels, its parents by name, and p(level | levels of the parents), (*parents' levels, levels)."""

    name: str
    levels: tuple[str, ...]
    parents: tuple[str, ...]
    probs: Tensor


def read_bif(path: Path | str) -> list[Node]:
    """The nodes of a file in its order, checked; whatever is wrong is told in one line with the line's number."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"{path}: no such file: expected a Bayesian network in a .bif or .bif.gz file")
    with open_file(path) as file:
        stored = file.read(MOST_BYTES + 1)
    if len(stored) > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES:,} bytes: too large for a Bayesian network")
    try:
        text = stored.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error.reason} at byte {error.start}: expected text in UTF-8") from None
    return _Parser(str(path), text).network()


class _Parser:
    """Reads tokens one after the other, and knows on which line it is."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.line = name, 1
        self.tokens = self._tokens(text)
        self.token = next(self.tokens)
        self.levels: dict[str, tuple[str, ...]] = {}
        self.tables: dict[str, tuple[tuple[str, ...], Tensor]] = {}
        self.n_numbers = 0

    def _tokens(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                self.fail(f"{text[at]!r} is no part of the format")
            assert match is not None
            found, at = match.group(0), match.end()
            if not found.isspace() and not found.startswith(("//", "/*")):
                yield found if match.group(1) is None else match.group(1)
            self.line += found.count("\n")
        while True:
            yield ""

    def fail(self, what: str) -> None:
        raise UserError(f"{self.name}, line {self.line}: {what}")

    def take(self, expected: str | None = None) -> str:
        """The token, which goes by; expected: what it must be, None for a word."""
        found = self.token
        if expected is None and (not found or found in "{}()[],;|"):
            self.fail(f"{found or 'the end'!r}: expected a word")
        if expected is not None and found != expected:
            self.fail(f"{found or 'the end'!r}: expected {expected!r}")
        self.token = next(self.tokens)
        return found

    def words(self, end: str) -> list[str]:
        """Words with commas between them, or without, and the bracket after them."""
        found: list[str] = []
        while self.token != end:
            if found and self.token == ",":
                self.take(",")
            found.append(self.take())
            if len(found) > MOST_NUMBERS:
                self.fail(f"more than {MOST_NUMBERS:,} values")
        self.take(end)
        return found

    def network(self) -> list[Node]:
        readers = {"network": self._header, "variable": self._variable, "probability": self._probability}
        while self.token:
            word = self.take()
            if word not in readers:
                self.fail(f"{word!r}: expected network, variable or probability")
            readers[word]()
        if not self.levels:
            self.fail("no variable: expected a Bayesian network")
        without = next((name for name in self.levels if name not in self.tables), None)
        if without is not None:
            self.fail(f"variable {without!r} has no probability")
        nodes = [Node(name, levels, *self.tables[name]) for name, levels in self.levels.items()]
        self._refuse_cycles(nodes)
        return nodes

    def _header(self) -> None:
        while self.token != "{":
            self.take()
        self._skip_block()

    def _skip_block(self) -> None:
        self.take("{")
        while self.token != "}":
            if not self.token:
                self.fail("the end: expected '}'")
            self.token = next(self.tokens)
        self.take("}")

    def _property(self) -> None:
        while self.token != ";":
            if not self.token:
                self.fail("the end: expected ';'")
            self.token = next(self.tokens)
        self.take(";")

    def _variable(self) -> None:
        name = self.take()
        if name in self.levels:
            self.fail(f"variable {name!r} for the second time")
        self.take("{")
        levels: list[str] = []
        while self.token != "}":
            word = self.take()
            if word == "property":
                self._property()
                continue
            if word != "type":
                self.fail(f"{word!r}: expected type")
            self.take("discrete")
            self.take("[")
            count = self.take()
            self.take("]")
            self.take("{")
            levels = self.words("}")
            self.take(";")
            if str(len(levels)) != count:
                self.fail(f"variable {name!r}: {len(levels)} levels where {count} are announced")
        self.take("}")
        if not levels or len(set(levels)) < len(levels) or len(levels) > MOST_LEVELS:
            self.fail(f"variable {name!r}: {len(levels)} levels: expected 1 to {MOST_LEVELS:,}, each once")
        self.levels[name] = tuple(levels)
        if len(self.levels) > MOST_NODES:
            self.fail(f"more than {MOST_NODES:,} variables")

    def _known(self, name: str) -> str:
        if name not in self.levels:
            self.fail(f"{name!r}: no such variable{did_you_mean(name, self.levels)}")
        return name

    def _probability(self) -> None:
        self.take("(")
        name = self._known(self.take())
        if name in self.tables:
            self.fail(f"probability of {name!r} for the second time")
        parents: list[str] = []
        if self.token == "|":
            self.take("|")
            parents = [self._known(parent) for parent in self.words(")")]
        else:
            self.take(")")
        if len({name, *parents}) <= len(parents):
            self.fail(f"probability of {name!r}: a variable stands there twice")
        sizes = [len(self.levels[parent]) for parent in parents]
        n_levels, n_rows = len(self.levels[name]), math.prod(sizes)
        self.n_numbers += n_rows * n_levels
        if self.n_numbers > MOST_NUMBERS:
            self.fail(f"more than {MOST_NUMBERS:,} probabilities")
        table = torch.full((n_rows, n_levels), math.nan, dtype=torch.float64)
        default: Tensor | None = None
        self.take("{")
        while self.token != "}":
            if self.token == "(":
                self.take("(")
                row = self._row(parents, sizes, self.words(")"))
                table[row] = self._numbers(n_levels)
                continue
            word = self.take()
            if word == "property":
                self._property()
            elif word == "table":
                # The levels of the variable itself come slowest, as the format has it.
                table = self._numbers(n_rows * n_levels).reshape(n_levels, n_rows).T.clone()
            elif word == "default":
                default = self._numbers(n_levels)
            else:
                self.fail(f"{word!r}: expected table, default, or levels of the parents")
        if default is not None:
            table = torch.where(table.isnan(), default, table)
        if bool(table.isnan().any()):
            self.fail(f"probability of {name!r}: {int(table.isnan().any(1).sum())} of {n_rows} rows are missing")
        totals = table.sum(1, keepdim=True)
        if not bool((totals - 1).abs().le(0.01).all()):
            worst = float(totals[(totals - 1).abs().argmax()])
            self.fail(f"probability of {name!r}: a row sums to {worst:.6g}: expected 1")
        self.take("}")
        self.tables[name] = tuple(parents), (table / totals).reshape(*sizes, n_levels)

    def _row(self, parents: list[str], sizes: list[int], levels: list[str]) -> int:
        if len(levels) != len(parents):
            self.fail(f"{len(levels)} levels of {len(parents)} parents: expected one of each")
        row = 0
        for parent, size, level in zip(parents, sizes, levels, strict=True):
            if level not in self.levels[parent]:
                self.fail(f"{level!r}: expected one of {parent!r}: {', '.join(self.levels[parent][:8])}")
            row = row * size + self.levels[parent].index(level)
        return row

    def _numbers(self, count: int) -> Tensor:
        words = self.words(";")
        try:
            values = torch.tensor([float(word) for word in words], dtype=torch.float64)
        except ValueError:
            self.fail("expected numbers")
        if len(values) != count or not bool((values >= 0).all()) or not bool(torch.isfinite(values).all()):
            self.fail(f"{len(words)} numbers: expected {count} probabilities")
        return values

    def _refuse_cycles(self, nodes: list[Node]) -> None:
        waiting, known = {node.name: set(node.parents) for node in nodes}, set[str]()
        while waiting:
            ready = [name for name, parents in waiting.items() if parents <= known]
            if not ready:
                self.fail(f"{', '.join(list(waiting)[:5])}: a variable that is its own ancestor")
            known.update(ready)
            for name in ready:
                del waiting[name]
