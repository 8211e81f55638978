"""Discrete Bayesian networks: exact rows of a table of categories, their probabilities, and exact posteriors.

What the state says of a node is the log-likelihood s u of each of its levels: evidence on every node. The posterior is
the sum over all other nodes, which a tree of cliques gives where they are small enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn.data.fetching import fetch
from bfn.data.table_cells import CellType
from bfn.data.table_columns import TableColumn, TableColumns
from bfn.errors import UserError
from bfn.exact.base import ExactModel, draw_classes, normal_log_prob, restore_log_zero, safe_log
from bfn.exact.bif import Node, read_bif
from bfn.exact.clique_tree import CliqueTree
from bfn.flows import DiscreteFlow, Flow, NoiseLevel
from bfn.heads import Categorical, Output
from bfn.info import ModelInfo
from bfn.joint import JointFlow
from bfn.joint_head import JointOutput

__all__ = ["BayesianNetwork"]

MOST_NUMBERS = 2_000_000
"""Numbers in the cliques, for each sample, up to which posteriors are computed."""
AT_A_TIME = 8_000_000
"""Numbers in the cliques of all samples that are computed together."""


class BayesianNetwork(ExactModel):
    """A network of nodes with tables of probabilities; each node of more than one level is a discrete part.

        network = BayesianNetwork.read("child.bif")            # or BayesianNetwork.fetch("child")
        rows = network.decode(network.sample_data(20_000))     # a DataFrame
        network.log_prob(network.encode(rows))                 # nats, exact

    flows: of the nodes; those whose evidence at t = 1 tells few and many levels apart alike if left out.
    """

    flow: JointFlow

    def __init__(
        self,
        nodes: list[Node],
        *,
        name: str = "network",
        flows: Mapping[str, Flow] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        varied = [node for node in nodes if len(node.levels) > 1]
        if not varied:
            raise UserError(f"{name}: no node has two levels: nothing to learn")
        own: dict[str, Flow] = {node.name: DiscreteFlow.with_separation(len(node.levels)) for node in varied}
        shapes: dict[str, tuple[int, ...]] = {node.name: () for node in varied}
        super().__init__(JointFlow({**own, **(flows or {})}).for_shape(shapes), (0,))
        self.data_shape = shapes
        self.name, self.nodes = name, _parents_first(nodes)
        self.place = {node.name: i for i, node in enumerate(self.nodes)}
        for i, node in enumerate(self.nodes):
            self.register_buffer(f"log_probs_{i}", safe_log(node.probs).to(dtype))
        self._columns = tuple(node.name for node in nodes)

    @classmethod
    def read(cls, path: Path | str, **settings: Any) -> BayesianNetwork:
        """From a .bif or .bif.gz file."""
        return cls(read_bif(path), name=Path(path).name.partition(".")[0], **settings)

    @classmethod
    def fetch(cls, name: str, **settings: Any) -> BayesianNetwork:
        """One of the standard networks, such as alarm, child or insurance: ``bfn data fetch child``."""
        return cls.read(fetch(name, verify=False) / f"{name}.bif.gz", **settings)

    @cached_property
    def info(self) -> ModelInfo:
        """That it is exact, and its nodes as columns of a table, in the file's order."""
        nodes = {node.name: node for node in self.nodes}
        text = CellType("text", "object")
        columns = TableColumns(tuple(TableColumn(name, text, nodes[name].levels) for name in self._columns))
        return ModelInfo(exact=True, columns=columns)

    @cached_property
    def cliques(self) -> CliqueTree:
        """The tree by which sums over all nodes are taken, without its factors."""
        families = [tuple(sorted(self._family(i))) for i in range(len(self.nodes))]
        return CliqueTree([len(node.levels) for node in self.nodes], families)

    @property
    def has_posterior(self) -> bool:
        """Whether exact posteriors are within reach."""
        return self.cliques.n_numbers <= MOST_NUMBERS

    def encode(self, rows: Any) -> dict[str, Tensor]:
        """The parts of a DataFrame with a column a node."""
        columns = self.info.columns
        assert columns is not None
        return columns.encode(rows)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:  # type: ignore[override]
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

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        tree, pieces = self._tree, []
        for rows in torch.split(torch.arange(len(u)), max(1, AT_A_TIME // tree.n_numbers)):
            found = tree.log_marginals(self._evidence(u, level, rows))
            pieces.append({part.name: found[self.place[part.name]] for part in self.flow.layout})
        whole = {part.name: torch.cat([piece[part.name] for piece in pieces]) for part in self.flow.layout}
        return JointOutput(self.flow.layout, {name: Categorical(logits) for name, logits in whole.items()})

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """The density at w = 0 times exp(s u . w / K - s^2 |w|^2 / 2K), as of :class:`JointMixture`."""
        tree, rows = self._tree, torch.arange(len(u))
        pieces = torch.split(rows, max(1, AT_A_TIME // tree.n_numbers))
        total = torch.cat([tree.log_sum(self._evidence(u, level, some)) for some in pieces])
        for part in self.flow.layout:
            own, s, n_levels = u[:, part.state], self._s(part, level, rows)[:, 0], part.flow.kappa
            total = total + normal_log_prob(own, n_levels) - s * own.sum(1) / n_levels - s * s * (n_levels - 1) / 2
        return total

    def marginals(self) -> dict[str, Tensor]:
        """The probabilities of each node's levels."""
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

    def _evidence(self, u: Tensor, level: NoiseLevel, rows: Tensor) -> dict[int, Tensor]:
        found = {i: u.new_zeros(len(rows), 1) for i, node in enumerate(self.nodes) if len(node.levels) == 1}
        for part in self.flow.layout:
            found[self.place[part.name]] = u[rows][:, part.state] * self._s(part, level, rows)
        return found

    def _s(self, part: Any, level: NoiseLevel, rows: Tensor) -> Tensor:
        """The part's s, (rows, 1) or (1, 1)."""
        s = torch.as_tensor(level.s, dtype=self.dtype, device=self.device)
        if not s.ndim:
            return s.reshape(1, 1)
        own = s[:, part.state][:, :1] if s.shape[1] > 1 else s
        return own if len(own) == 1 else own[rows]

    def _values(self, x: Tensor) -> dict[str, Tensor]:
        constant = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return {node.name: constant for node in self.nodes if len(node.levels) == 1} | self.flow.unpack(x)

    def _family(self, i: int) -> list[int]:
        node = self.nodes[i]
        return [*(self.place[parent] for parent in node.parents), i]

    def _log_probs(self, i: int) -> Tensor:
        return self.get_buffer(f"log_probs_{i}")


def _parents_first(nodes: list[Node]) -> list[Node]:
    found: dict[str, Node] = {}
    waiting = list(nodes)
    while waiting:
        ready = [node for node in waiting if all(parent in found for parent in node.parents)]
        if not ready:
            raise UserError(f"{waiting[0].name}: its parents {', '.join(waiting[0].parents)} come nowhere before it")
        found |= {node.name: node for node in ready}
        waiting = [node for node in waiting if node.name not in found]
    return list(found.values())
