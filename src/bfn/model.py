"""Models: a network with a flow and a head, and what any model can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bfn import likelihood, losses, storage
from bfn.error_curve import ErrorCurve
from bfn.errors import NetworkError, UserError
from bfn.flows import Flow, Level, Shape
from bfn.heads import Head, Output, make_head
from bfn.likelihood import Likelihood
from bfn.sampling import Samples, sample
from bfn.solvers import Table


class Model(ABC):
    """Anything that predicts data from a state: :class:`BFN`, and the exact models of ``bfn.exact``.

    tables: solvers tuned to this model, by their number of calls (``bfn.tuning``); the solver "auto" takes them.
    error_curve: how wrong the prediction is at each time, if known (``bfn.losses.error_curve``).
    """

    flow: Flow
    data_shape: Shape
    tables: Mapping[int, Table] = MappingProxyType({})
    error_curve: ErrorCurve | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Type that states are kept in."""
        return torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """Where states are kept."""
        return torch.device("cpu")

    @property
    def starts_at_zero(self) -> bool:
        """Whether the prediction is defined at t = 0."""
        return True

    @abstractmethod
    def output(self, u: Tensor, level: Level, label: Tensor | None = None) -> Output:
        """Distribution over the data given the state u, (batch, *state_shape), at that level."""

    def loss(
        self,
        x: Tensor,
        t: Tensor | None = None,
        n_steps: int | None = None,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
    ) -> Tensor:
        """The continuous-time loss, or the n-step loss if ``n_steps`` is given: (batch,), nats a dimension.

        t: (batch,), drawn stratified if None. Draws: the times, then the noise (then the message, for n steps).
        """
        self.flow.check(x, self.data_shape)
        if n_steps is not None:
            return losses.n_step_loss(self, x, n_steps, t, generator, label)
        return losses.continuous_time_loss(self, x, t, generator, label)

    def reconstruction_loss(
        self, x: Tensor, generator: torch.Generator | None = None, label: Tensor | None = None
    ) -> Tensor:
        """-log p_O(x) at t = 1: (batch,), nats a dimension."""
        self.flow.check(x, self.data_shape)
        return losses.reconstruction_loss(self, x, generator, label)

    def sample(self, n: int, solver: Any = "auto", nfe: int | None = None, **settings: Any) -> Samples:
        """n samples: see :func:`bfn.sample` for the settings."""
        return sample(self, n, solver, nfe, **settings)

    def log_likelihood(
        self, x: Tensor, method: likelihood.Method = "ode", nfe: int | None = None, **settings: Any
    ) -> Likelihood:
        """log p(x) of each sample, or a bound: see :func:`bfn.likelihood.log_likelihood` for the settings."""
        return likelihood.log_likelihood(self, x, method, nfe, **settings)


class BFN(Model, nn.Module):
    """A Bayesian flow network: any network, on a flow, read by a head.

    network: ``network(inputs, t) -> output``; ``network(inputs, t, label=label)`` where labels are given.
        inputs: continuous mu, (batch, *data_shape); discrete theta, (batch, *data_shape, K). t: (batch,).
    predicts: "noise", "data", "preconditioned" (continuous), "logits" (discrete), or a :class:`bfn.heads.Head`.
    """

    def __init__(
        self, network: Callable[..., Tensor], flow: Flow, predicts: str | Head, data_shape: Shape | list[int]
    ) -> None:
        super().__init__()
        self.network = network
        self.flow = flow
        self.head = make_head(predicts, flow) if isinstance(predicts, str) else predicts
        if self.head.kind != flow.kind:
            raise UserError(f"predicts={self.head}: it is for {self.head.kind} data, the flow is {flow.kind}")
        self.data_shape = tuple(data_shape)

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def starts_at_zero(self) -> bool:
        return self.head.starts_at_zero

    def output(self, u: Tensor, level: Level, label: Tensor | None = None) -> Output:
        inputs = self.head.inputs(self.flow, u, level)
        raw = self.network(inputs, level.t) if label is None else self.network(inputs, level.t, label=label)
        expected = (len(u), *self.head.raw_shape(self.flow.state_shape(self.data_shape)))
        if tuple(raw.shape) != expected:
            raise NetworkError(
                f"the network's output at t={float(level.t[0]):.6g} has shape {tuple(raw.shape)}: expected {expected}"
            )
        return self.head.output(self.flow, raw, u, level)

    def save(self, directory: Path | str, extras: Mapping[str, Any] | None = None, *, dtype: str = "float32") -> Path:
        """Write ``model.safetensors`` and ``config.json``: see :func:`bfn.storage.save`."""
        return storage.save(self, directory, extras, dtype=dtype)


def load(name: Path | str, network: nn.Module | None = None) -> BFN:
    """A model from a directory, or a bundled one by its name; float32, in evaluation mode.

    network: needed where the model was stored with a network that is not one of ``bfn.networks``.
    """
    parts = storage.load_parts(name, network)
    model = BFN(parts.network, parts.flow, parts.head, parts.data_shape)
    model.tables, model.error_curve = parts.tables, parts.error_curve
    model.eval()
    return model
