"""Bayesian networks of categories: exact models of rows, read from files in the Bayesian interchange format.

    network = BayesianNetwork.fetch("child")               # or BayesianNetwork.read("child.bif")
    rows = network.decode(network.sample_data(20_000))     # a DataFrame

Files (.bif, .bif.gz) look like this:

    network NAME { ... }
    variable A { type discrete [ 2 ] { yes, no }; }
    probability ( A | B, C ) { ( yes, low ) 0.2, 0.8; ... }      or  { table 0.2, 0.8; }, or { default 0.5, 0.5; }

Posteriors are exact by message passing on a tree of cliques.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import DiscreteFlow, JointFlow, ModelInfo, UserError, heads
from bfn.data import CellType, TableColumn, TableColumns, fetch
from bfn.exact import ExactModel, class_factor, draw_classes, restore_log_zero, safe_log

MOST_BYTES = 64 << 20
MOST_NODES, MOST_LEVELS, MOST_PROBABILITIES = 10_000, 10_000, 10_000_000
"""Limits of a file."""

MOST_NUMBERS = 2_000_000
"""Maximum number of entries of all cliques, for each sample, for exact posteriors."""

AT_A_TIME = 8_000_000
"""Number of entries of the cliques of all samples that are computed together."""

_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"([^"\n]*)"|[{}()\[\],;|]|[^\s{}()\[\],;|"]+|\n|[^\S\n]+', re.DOTALL)


@dataclass(frozen=True, eq=False)
class Node:
    """A variable: its levels, names of its parents, and p(level | parents), (*levels of the parents, levels)."""

    name: str
    levels: tuple[str, ...]
    parents: tuple[str, ...]
    probs: Tensor


def read_bif(path: Path | str) -> list[Node]:
    """Read the nodes of a file, in its order. Raises UserError with the number of the line if something is wrong."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"{path}: no such file: expected a Bayesian network in a .bif or .bif.gz file")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            stored = file.read(MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: a damaged file ({error}): get it again") from None
    if len(stored) > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES:,} bytes: too large for a Bayesian network")
    try:
        text = stored.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error.reason} at byte {error.start}: expected text in UTF-8") from None
    return _Parser(str(path), text).network()


class _Parser:
    """Reads tokens one after the other, and counts lines."""

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
                self.fail(f"{text[at]!r} is not part of the format")
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
        """Return the current token and go to the next one. It must be ``expected``, or a word if that is None."""
        found = self.token
        if expected is None and (not found or found in "{}()[],;|"):
            self.fail(f"{found or 'the end'!r}: expected a word")
        if expected is not None and found != expected:
            self.fail(f"{found or 'the end'!r}: expected {expected!r}")
        self.token = next(self.tokens)
        return found

    def words(self, end: str) -> list[str]:
        """Return words, with or without commas between them, up to a bracket."""
        found: list[str] = []
        while self.token != end:
            if found and self.token == ",":
                self.take(",")
            found.append(self.take())
            if len(found) > MOST_PROBABILITIES:
                self.fail(f"more than {MOST_PROBABILITIES:,} values")
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
        _, rest = _parents_first(nodes)
        if rest:
            self.fail(f"{', '.join(node.name for node in rest[:5])}: a variable that is its own ancestor")
        return nodes

    def _header(self) -> None:
        while self.token != "{":
            self.take()
        self._skip("}")

    def _skip(self, end: str) -> None:
        """Go on after a bracket or a semicolon."""
        while self.token != end:
            if not self.token:
                self.fail(f"the end: expected {end!r}")
            self.token = next(self.tokens)
        self.take(end)

    def _variable(self) -> None:
        name = self.take()
        if name in self.levels:
            self.fail(f"variable {name!r} is defined twice")
        self.take("{")
        levels: list[str] = []
        while self.token != "}":
            word = self.take()
            if word == "property":
                self._skip(";")
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
            hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, self.levels, 1))
            self.fail(f"{name!r}: no such variable{hint}")
        return name

    def _probability(self) -> None:
        self.take("(")
        name = self._known(self.take())
        if name in self.tables:
            self.fail(f"probability of {name!r} is defined twice")
        parents: list[str] = []
        if self.token == "|":
            self.take("|")
            parents = [self._known(parent) for parent in self.words(")")]
        else:
            self.take(")")
        if len({name, *parents}) <= len(parents):
            self.fail(f"probability of {name!r}: a variable is named twice")
        sizes = [len(self.levels[parent]) for parent in parents]
        n_levels, n_rows = len(self.levels[name]), math.prod(sizes)
        self.n_numbers += n_rows * n_levels
        if self.n_numbers > MOST_PROBABILITIES:
            self.fail(f"more than {MOST_PROBABILITIES:,} probabilities")
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
                self._skip(";")
            elif word == "table":
                # In the format, the levels of the variable itself change slowest.
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


class CliqueTree:
    """Sums of products of factors over many variables, by message passing on a tree of cliques.

    Args:
        sizes: number of levels of each variable.
        scopes: variables of each factor, in increasing order.
    """

    def __init__(self, sizes: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> None:
        self.sizes = tuple(sizes)
        self.order, self.scopes = _eliminated(self.sizes, scopes)
        place = {v: i for i, v in enumerate(self.order)}
        self.first = [min(scope, key=place.__getitem__) for scope in scopes]
        """The variable, and so the clique, that eliminates each factor."""
        self.factor_scopes = tuple(scopes)
        self.rest = {of: tuple(v for v in scope if v != of) for of, scope in self.scopes.items()}
        """The variables that a clique, named by the variable that it eliminates, sends a message about."""
        self.parent = {of: min(rest, key=place.__getitem__, default=None) for of, rest in self.rest.items()}
        """The clique that each clique sends its message to."""
        self.n_numbers = sum(math.prod(self.sizes[v] for v in scope) for scope in self.scopes.values())
        """Number of entries of all cliques: the cost of a sum for each piece of evidence."""
        self.log_factors: dict[int, Tensor] = {}

    def set_factors(self, log_factors: Sequence[Tensor]) -> None:
        """Set the logarithms of the factors, each with an axis for each variable of its scope."""
        shapes = {of: [self.sizes[v] for v in scope] for of, scope in self.scopes.items()}
        own = {of: torch.zeros(1, *shape, dtype=log_factors[0].dtype) for of, shape in shapes.items()}
        for of, scope, log_factor in zip(self.first, self.factor_scopes, log_factors, strict=True):
            own[of] = own[of] + _spread(log_factor.unsqueeze(0), scope, self.scopes[of])
        self.log_factors = own

    def log_sum(self, evidence: Mapping[int, Tensor]) -> Tensor:
        """Return the log of the sum over all values of the factors times the evidence, (batch,).

        Args:
            evidence: log-weights of the levels of each variable, (batch, levels).
        """
        return self._collected(evidence)[1]

    def log_marginals(self, evidence: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return the same sum with one variable fixed, for each variable and level: (batch, levels), unnormalised."""
        tables, _, messages = self._collected(evidence)
        found: dict[int, Tensor] = {}
        for of in reversed(self.order):
            parent = self.parent[of]
            if parent is not None:
                # The sum of the parent without the message of this clique.
                known = _summed(tables[parent], self.scopes[parent], self.rest[of]) - messages[of]
                tables[of] = tables[of] + _spread(known, self.rest[of], self.scopes[of])
            found[of] = _summed(tables[of], self.scopes[of], (of,))
        return found

    def _collected(self, evidence: Mapping[int, Tensor]) -> tuple[dict[int, Tensor], Tensor, dict[int, Tensor]]:
        """Return the tables of the cliques with the messages to them, the log of the sum, and the messages."""
        tables = {of: self.log_factors[of] + _spread(evidence[of], (of,), self.scopes[of]) for of in self.order}
        messages: dict[int, Tensor] = {}
        total = torch.zeros(())
        for of in self.order:
            messages[of] = message = _summed(tables[of], self.scopes[of], self.rest[of])
            parent = self.parent[of]
            if parent is None:
                total = total + message
            else:
                tables[parent] = tables[parent] + _spread(message, self.rest[of], self.scopes[parent])
        return tables, total, messages


def _eliminated(
    sizes: Sequence[int], scopes: Sequence[tuple[int, ...]]
) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """Return an order of elimination, always of the variable with the smallest clique, and the clique of each."""
    neighbours: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
    for scope in scopes:
        for v in scope:
            neighbours[v] |= set(scope) - {v}
    weight = {v: sum(math.log(sizes[w]) for w in (v, *around)) for v, around in neighbours.items()}
    order, cliques = [], {}
    while neighbours:
        v = min(neighbours, key=lambda one: (weight[one], one))
        around = neighbours.pop(v)
        order.append(v)
        cliques[v] = tuple(sorted({v, *around}))
        for w in around:
            neighbours[w] = (neighbours[w] | around) - {v, w}
            weight[w] = sum(math.log(sizes[x]) for x in (w, *neighbours[w]))
    return order, cliques


def _spread(table: Tensor, scope: tuple[int, ...], over: tuple[int, ...]) -> Tensor:
    """Return a view of (batch, ...) with an axis for each variable of a larger scope; both are in increasing order."""
    sizes = iter(table.shape[1:])
    return table.reshape(len(table), *(next(sizes) if v in scope else 1 for v in over))


def _summed(table: Tensor, scope: tuple[int, ...], onto: tuple[int, ...]) -> Tensor:
    """Return the log of the sum over all variables that are not kept."""
    away = [1 + i for i, v in enumerate(scope) if v not in onto]
    return torch.logsumexp(table, away) if away else table


class BayesianNetwork(ExactModel):
    """A Bayesian network of categories. Each node with more than one level is a discrete part of the data.

        network = BayesianNetwork.read("child.bif")
        rows = network.decode(network.sample_data(20_000))     # a DataFrame
        network.log_prob(network.encode(rows))                 # nats, exact

    Args:
        nodes: the nodes, in any order.
        name: name of the network, for messages.
        flows: flows of the nodes. By default, the separation of levels at t = 1 does not depend on their number.
        dtype: type of the states.
    """

    flow: JointFlow

    def __init__(
        self,
        nodes: list[Node],
        *,
        name: str = "network",
        flows: Mapping[str, DiscreteFlow] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        varied = [node for node in nodes if len(node.levels) > 1]
        if not varied:
            raise UserError(f"{name}: no node has two levels: nothing to learn")
        own: dict[str, DiscreteFlow] = {node.name: DiscreteFlow.with_separation(len(node.levels)) for node in varied}
        shapes: dict[str, tuple[int, ...]] = {node.name: () for node in varied}
        super().__init__(JointFlow({**own, **(flows or {})}).for_shape(shapes), (0,))
        self.data_shape = shapes
        self.nodes, rest = _parents_first(nodes)
        if rest:
            raise UserError(f"{rest[0].name}: its parents {', '.join(rest[0].parents)} come nowhere before it")
        self.name = name
        self.place = {node.name: i for i, node in enumerate(self.nodes)}
        for i, node in enumerate(self.nodes):
            self.register_buffer(f"log_probs_{i}", safe_log(node.probs).to(dtype))
        self._columns = tuple(node.name for node in nodes)

    @classmethod
    def read(cls, path: Path | str, **settings: Any) -> BayesianNetwork:
        """Read a .bif or .bif.gz file."""
        return cls(read_bif(path), name=Path(path).name.partition(".")[0], **settings)

    @classmethod
    def fetch(cls, name: str, **settings: Any) -> BayesianNetwork:
        """Download a standard network, such as alarm, child or insurance, as ``bfn data fetch child`` does."""
        return cls.read(fetch(name, verify=False) / f"{name}.bif.gz", **settings)

    @cached_property
    def info(self) -> ModelInfo:
        """The fact that the model is exact, and its nodes as columns of a table, in the order of the file."""
        nodes = {node.name: node for node in self.nodes}
        text = CellType("text", "object")
        columns = TableColumns(tuple(TableColumn(name, text, nodes[name].levels) for name in self._columns))
        return ModelInfo(exact=True, columns=columns)

    @cached_property
    def cliques(self) -> CliqueTree:
        """The tree of cliques, without its factors."""
        families = [tuple(sorted(self._family(i))) for i in range(len(self.nodes))]
        return CliqueTree([len(node.levels) for node in self.nodes], families)

    @property
    def has_posterior(self) -> bool:
        """True if exact posteriors need little enough memory."""
        return self.cliques.n_numbers <= MOST_NUMBERS

    def encode(self, rows: Any) -> dict[str, Tensor]:
        """Return the parts of a DataFrame that has a column for each node."""
        parts: dict[str, Tensor] = super().encode(rows)["x"]
        return parts

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        drawn: dict[str, Tensor] = {}
        for i, node in enumerate(self.nodes):
            given = tuple(drawn[parent] for parent in node.parents)
            probs = self._log_probs(i).exp()
            drawn[node.name] = draw_classes(probs[given] if given else probs.expand(n, -1), generator)
        return {name: drawn[name] for name in self.flow.parts}

    def log_prob(self, x: Any) -> Tensor:
        values = self._values(self.as_data(x))
        total = torch.zeros(len(next(iter(values.values()))), dtype=self.dtype, device=self.device)
        for i, node in enumerate(self.nodes):
            total = total + self._log_probs(i)[(*(values[parent] for parent in node.parents), values[node.name])]
        return restore_log_zero(total)

    def posterior_output(self, u: Tensor, level: heads.NoiseLevel) -> heads.Output:
        pieces = [*map(self._tree.log_marginals, self._evidence(u, level))]
        places = {part.name: self.place[part.name] for part in self.flow.layout}
        whole = {name: torch.cat([piece[place] for piece in pieces]) for name, place in places.items()}
        return heads.JointOutput(self.flow.layout, {name: heads.Categorical(logits) for name, logits in whole.items()})

    def log_evidence(self, u: Tensor, level: heads.NoiseLevel) -> Tensor:
        """Sum the density at w = 0 times exp(s u . w / K - s^2 |w|^2 / 2K), as ``bfn.exact.JointMixture`` does."""
        total = torch.cat([*map(self._tree.log_sum, self._evidence(u, level))])
        for part in self.flow.layout:
            total = total + class_factor(part.state_of(u), part.scale_of(level.s))
        return total

    def marginals(self) -> dict[str, Tensor]:
        """Return the probabilities of the levels of each node."""
        flat = {i: torch.zeros(1, len(node.levels), dtype=self.dtype) for i, node in enumerate(self.nodes)}
        found = self._tree.log_marginals(flat)
        return {name: found[self.place[name]][0].softmax(-1) for name in self.flow.parts}

    @property
    def _tree(self) -> CliqueTree:
        if not self.has_posterior:
            raise UserError(
                f"{self.name}: exact posteriors need tables of {self.cliques.n_numbers:.3g} numbers a sample, more "
                f"than {MOST_NUMBERS:,}; its rows (sample_data) and their log_prob are exact all the same"
            )
        factors = []
        for i in range(len(self.nodes)):
            family = self._family(i)
            factors.append(self._log_probs(i).permute([family.index(v) for v in sorted(family)]))
        self.cliques.set_factors(factors)
        return self.cliques

    def _evidence(self, u: Tensor, level: heads.NoiseLevel) -> Iterator[dict[int, Tensor]]:
        """Yield the log-likelihoods of the levels of each node, for as many samples as fit at a time."""
        single = [i for i, node in enumerate(self.nodes) if len(node.levels) == 1]
        for rows in torch.split(torch.arange(len(u)), max(1, AT_A_TIME // self.cliques.n_numbers)):
            s = level.s[rows] if isinstance(level.s, Tensor) and len(level.s) > 1 else level.s
            found = {i: u.new_zeros(len(rows), 1) for i in single}
            for part in self.flow.layout:
                found[self.place[part.name]] = part.state_of(u[rows]) * part.scale_of(s)
            yield found

    def _values(self, x: Tensor) -> dict[str, Tensor]:
        constant = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        values: dict[str, Tensor] = self.flow.unpack(x)
        return {node.name: constant for node in self.nodes if len(node.levels) == 1} | values

    def _family(self, i: int) -> list[int]:
        node = self.nodes[i]
        return [*(self.place[parent] for parent in node.parents), i]

    def _log_probs(self, i: int) -> Tensor:
        return self.get_buffer(f"log_probs_{i}")


def _parents_first(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes with parents before their children, and those that have no such order."""
    found: dict[str, Node] = {}
    waiting, ready = list(nodes), list(nodes)
    while ready:
        ready = [node for node in waiting if all(parent in found for parent in node.parents)]
        found |= {node.name: node for node in ready}
        waiting = [node for node in waiting if node.name not in found]
    return list(found.values()), waiting
