"""An exact model of joint data: a mixture with independent variables in each component."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, NoiseLevel, PartFlow
from bfn.core.heads import Categorical, Output, Point, unknown_scale
from bfn.core.joint import JointFlow, JointOutput
from bfn.exact.base import ExactModel, check_probs, class_factor, draw_classes, log_probs_of, safe_log


class _Normals(nn.Module):
    """Normal distributions of the variables of a continuous part, in each of M components.

    A state is (batch, *shape), and s a number or a tensor that broadcasts against it.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, means: Tensor, stds: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", means.to(dtype))
        self.register_buffer("variance", stds.square().to(dtype))

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of data in each component, (batch, M)."""
        return _log_density(x.unsqueeze(1) - self.mean, self.variance)

    def log_state(self, u: Tensor, s: Any) -> Tensor:
        """Return the log-density of the state in each component, (batch, M)."""
        s = _beside_components(s)
        return _log_density(u.unsqueeze(1) - s * self.mean, 1 + s * s * self.variance)

    def log_factor(self, u: Tensor, s: Any) -> Tensor:
        """Return the log of the factor of the state's density that ``log_state`` leaves out, (batch,)."""
        return u.new_zeros(len(u))

    def output(self, u: Tensor, level: NoiseLevel, weights: Tensor) -> Output:
        """Return the output distribution, given the weight of each component, (batch, M)."""
        s = _beside_components(level.s)
        residual = u.unsqueeze(1) - s * self.mean
        x_hat = self.mean + s * self.variance * residual / (1 + s * s * self.variance)
        weights = weights.reshape(*weights.shape, *[1] * (u.ndim - 1))
        return Point((weights * x_hat).sum(1), unknown_scale(level))

    def draw(self, components: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw data from the given components."""
        mean = self.mean[components]
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + noise * self.variance[components].sqrt()


class _Categoricals(nn.Module):
    """Distributions of the variables of a discrete part, in each of M components. See ``_Normals``."""

    log_probs: Tensor

    def __init__(self, probs: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("log_probs", safe_log(probs).to(dtype))

    def log_prob(self, x: Tensor) -> Tensor:
        return log_probs_of(self.log_probs, x)

    def log_state(self, u: Tensor, s: Any) -> Tensor:
        total = torch.logsumexp(self.log_probs + (s * u).unsqueeze(1), -1)
        return total.reshape(*total.shape[:2], -1).sum(-1)

    def log_factor(self, u: Tensor, s: Any) -> Tensor:
        return class_factor(u, s)

    def output(self, u: Tensor, level: NoiseLevel, weights: Tensor) -> Output:
        posterior = torch.log_softmax(self.log_probs + (level.s * u).unsqueeze(1), -1)
        log_weights = weights.clamp(min=1e-300).log()
        return Categorical(torch.logsumexp(log_weights.reshape(*weights.shape, *[1] * (u.ndim - 1)) + posterior, 1))

    def draw(self, components: Tensor, generator: torch.Generator | None) -> Tensor:
        probs = self.log_probs[components].exp()
        return draw_classes(probs.flatten(0, -2), generator).reshape(probs.shape[:-1])


class JointMixture(ExactModel):
    """Mixture of M components over named parts.

    Given the component, the numbers of continuous parts are normal, and all variables are independent. With the
    responsibilities r_m = p(m | u) from all parts together, the predictions are

        numbers   x_hat = sum_m r_m [ mu_m + s v_m (u - s mu_m) / (1 + s^2 v_m) ]
        classes   p_k   = sum_m r_m softmax_k( log p_mk + s u_k )

    Args:
        numbers: (means, stds) of each continuous part, (M, *shape) both.
        classes: probabilities of each discrete part, (M, *shape, K).
        weights: (M,), equal if None.
        flows: of the parts; parts that are left out have the default flow of their kind.
        times: see ``bfn.JointFlow``.
        dtype: type of the parameters and of the states.

    >>> model = JointMixture({"x": ([[0.0], [1.0]], [[0.1], [0.2]])}, {"kind": [[0.9, 0.1], [0.2, 0.8]]})
    >>> sorted(model.sample_data(3))
    ['kind', 'x']
    """

    flow: JointFlow

    def __init__(
        self,
        numbers: Mapping[str, Any],
        classes: Mapping[str, Any],
        *,
        weights: Any = None,
        flows: Mapping[str, PartFlow] | None = None,
        times: str = "together",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        pairs = {name: tuple(torch.as_tensor(x, dtype=torch.float64) for x in pair) for name, pair in numbers.items()}
        probs = {name: check_probs(torch.as_tensor(p, dtype=torch.float64), name) for name, p in classes.items()}
        counts = {len(means) for means, _ in pairs.values()} | {len(p) for p in probs.values()}
        if len(counts) != 1 or any(means.shape != stds.shape for means, stds in pairs.values()):
            raise UserError("parts of a mixture: expected as many components in each, and a std for each mean")
        own: dict[str, PartFlow] = {name: ContinuousFlow() for name in pairs}
        own |= {name: DiscreteFlow(p.shape[-1], 18 / p.shape[-1]) for name, p in probs.items()}
        shapes = {name: tuple(means.shape[1:]) for name, (means, _) in pairs.items()}
        shapes |= {name: tuple(p.shape[1:-1]) for name, p in probs.items()}
        flow = JointFlow({**own, **(flows or {})}, times=times).for_shape(shapes)
        super().__init__(flow, shapes, dtype)
        weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        self._register_weights(weights, torch.empty(counts.pop()))
        self.components = nn.ModuleDict({name: _Normals(means, stds, dtype) for name, (means, stds) in pairs.items()})
        self.components.update({name: _Categoricals(p, dtype) for name, p in probs.items()})

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        weights = torch.softmax(self._log_joint(u, level), 1)
        outputs = {
            part.name: self._of(part.name).output(part.state_of(u), part.level_of(level), weights)
            for part in self.flow.layout
        }
        return JointOutput(self.flow.layout, outputs)

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        total = torch.logsumexp(self._log_joint(u, level), 1)
        for part in self.flow.layout:
            total = total + self._of(part.name).log_factor(part.state_of(u), part.scale_of(level.s))
        return total

    def log_prob(self, x: Any) -> Tensor:
        x = self.as_data(x)
        total = self.log_weights.expand(len(x), -1)
        for part in self.flow.layout:
            total = total + self._of(part.name).log_prob(part.data_of(x))
        return torch.logsumexp(total, 1)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        chosen = self._draw_components(n, generator)
        return {part.name: self._of(part.name).draw(chosen, generator) for part in self.flow.layout}

    def _of(self, name: str) -> Any:
        return self.components[name]

    def _log_joint(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """Return log pi_m p(u | m), (batch, M), up to factors that all components share."""
        total = self.log_weights.expand(len(u), -1)
        for part in self.flow.layout:
            total = total + self._of(part.name).log_state(part.state_of(u), part.scale_of(level.s))
        return total


def _beside_components(s: Any) -> Any:
    """Return a level as a factor of (batch, M, *shape)."""
    return s.unsqueeze(1) if isinstance(s, Tensor) else s


def _log_density(residual: Tensor, variance: Tensor) -> Tensor:
    """Return the log-density of (batch, M, *shape) under N(0, variance), (batch, M)."""
    squares = residual.square() / variance + (2 * torch.pi * variance).log()
    return -squares.reshape(*squares.shape[:2], -1).sum(-1) / 2
