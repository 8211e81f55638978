"""A mixture over joint data: given the component, numbers are normal and classes independent of one another.

With responsibilities r_m = p(m | u) from all parts together, each part's posterior is that of its components:

    numbers   x_hat = sum_m r_m [ mu_m + s v_m (u - s mu_m) / (1 + s^2 v_m) ]
    classes   p_k   = sum_m r_m softmax_k( log p_mk + s u_k )
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, Flow, NoiseLevel
from bfn.core.heads import Categorical, Output, Point, unknown_scale
from bfn.core.joint import JointFlow, JointOutput, flat
from bfn.core.joint import SlicedPart as Part
from bfn.exact.base import (
    ExactModel,
    check_probs,
    draw_classes,
    draw_components,
    log_weights,
    normal_log_prob,
    safe_log,
)


class JointMixture(ExactModel):
    """M components over named parts.

    numbers: for each continuous part (means, stds), (M, *shape) each. classes: for each discrete part the probabilities
    (M, *shape, K). weights: (M,), equal if None. flows: of the parts, the usual ones where they are left out.
    times: as of :class:`bfn.JointFlow`.

    >>> model = JointMixture({"x": ([[0.0], [1.0]], [[0.1], [0.2]])}, {"kind": [[0.9, 0.1], [0.2, 0.8]]})
    >>> sorted(model.sample_data(3))
    ['kind', 'x']
    """

    flow: JointFlow
    log_weights: Tensor

    def __init__(
        self,
        numbers: Mapping[str, Any],
        classes: Mapping[str, Any],
        *,
        weights: Any = None,
        flows: Mapping[str, Flow] | None = None,
        times: str = "together",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        pairs = {name: tuple(torch.as_tensor(x, dtype=torch.float64) for x in pair) for name, pair in numbers.items()}
        probs = {name: check_probs(torch.as_tensor(p, dtype=torch.float64), name) for name, p in classes.items()}
        counts = {len(means) for means, _ in pairs.values()} | {len(p) for p in probs.values()}
        if len(counts) != 1 or any(means.shape != stds.shape for means, stds in pairs.values()):
            raise UserError("parts of a mixture: expected as many components in each, and a std for each mean")
        own: dict[str, Flow] = {name: ContinuousFlow() for name in pairs}
        own |= {name: DiscreteFlow(p.shape[-1], 18 / p.shape[-1]) for name, p in probs.items()}
        shapes = {name: tuple(means.shape[1:]) for name, (means, _) in pairs.items()}
        shapes |= {name: tuple(p.shape[1:-1]) for name, p in probs.items()}
        super().__init__(JointFlow({**own, **(flows or {})}, times=times).for_shape(shapes), (0,))
        self.data_shape = shapes
        n = counts.pop()
        for name, (means, stds) in pairs.items():
            self.register_buffer(f"mean_{name}", means.reshape(n, -1).to(dtype))
            self.register_buffer(f"variance_{name}", stds.reshape(n, -1).square().to(dtype))
        for name, p in probs.items():
            self.register_buffer(f"log_probs_{name}", safe_log(p).reshape(n, -1, p.shape[-1]).to(dtype))
        weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        self.register_buffer("log_weights", log_weights(weights, torch.empty(n), dtype))

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        resp = torch.softmax(self._log_joint(u, level), 1)
        return JointOutput(self.flow.layout, {part.name: self._part(part, u, level, resp) for part in self.flow.layout})

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """The states of classes enter by their density at w = 0 times exp(s u . w / K - s^2 |w|^2 / 2K)."""
        total = torch.logsumexp(self._log_joint(u, level), 1)
        for part in self.flow.layout:
            if not part.flow.has_range:
                own, s, n_classes = self._own(part, u), self._s(part, level).squeeze(-1), part.flow.kappa
                size = prod(part.shape)
                base = normal_log_prob(own, n_classes)
                first = s[:, 0]
                total = total + base - first * own.flatten(1).sum(1) / n_classes
                total = total - first * first * (size * (n_classes - 1) / 2)
        return total

    def log_prob(self, x: Any) -> Tensor:
        x = self.as_data(x)
        total = self.log_weights.expand(len(x), -1)
        for part in self.flow.layout:
            own = flat(part.data_of(x))
            if part.flow.has_range:
                mean, variance = self._get("mean", part), self._get("variance", part)
                squares = (own.unsqueeze(1) - mean).square() / variance + (2 * torch.pi * variance).log()
                total = total - squares.sum(-1) / 2
            else:
                log_probs = self._get("log_probs", part).unsqueeze(0).expand(len(x), -1, -1, -1)
                chosen = own.long().unsqueeze(1).unsqueeze(-1).expand(-1, log_probs.shape[1], -1, 1)
                total = total + log_probs.gather(-1, chosen).squeeze(-1).sum(-1)
        return torch.logsumexp(total, 1)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        which = draw_components(self.log_weights.exp(), n, generator)
        drawn = {}
        for part in self.flow.layout:
            if part.flow.has_range:
                mean, variance = self._get("mean", part)[which], self._get("variance", part)[which]
                noise = torch.randn(mean.shape, generator=generator, dtype=self.dtype, device=self.device)
                drawn[part.name] = (mean + noise * variance.sqrt()).reshape(n, *part.shape)
            else:
                probs = self._get("log_probs", part)[which].exp()
                drawn[part.name] = draw_classes(probs.flatten(0, 1), generator).reshape(n, *part.shape)
        return drawn

    def _get(self, what: str, part: Part) -> Tensor:
        return self.get_buffer(f"{what}_{part.name}")

    def _own(self, part: Part, u: Tensor) -> Tensor:
        """The part's state, (batch, variables) or (batch, variables, K)."""
        own = u[:, part.state]
        return own if part.flow.has_range else own.reshape(len(u), -1, int(part.flow.kappa))

    def _s(self, part: Part, level: NoiseLevel) -> Tensor:
        """The part's s, to broadcast against its state, a number a variable at least."""
        s = torch.as_tensor(level.s, dtype=self.dtype)
        s = s[:, part.state] if s.ndim else s.reshape(1, 1)
        return (
            s if part.flow.has_range else s.reshape(len(s), -1, int(part.flow.kappa) if s.numel() > 1 else 1)[..., :1]
        )

    def _log_joint(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """log pi_m p(u | m), (batch, M); of classes up to what all components share."""
        total = self.log_weights.expand(len(u), -1)
        for part in self.flow.layout:
            own, s = self._own(part, u).unsqueeze(1), self._s(part, level).unsqueeze(1)
            if part.flow.has_range:
                variance = 1 + s * s * self._get("variance", part)
                squares = (own - s * self._get("mean", part)).square() / variance + (2 * torch.pi * variance).log()
                total = total - squares.sum(-1) / 2
            else:
                total = total + torch.logsumexp(self._get("log_probs", part) + s * own, -1).sum(-1)
        return total

    def _part(self, part: Part, u: Tensor, level: NoiseLevel, resp: Tensor) -> Output:
        own, s = self._own(part, u).unsqueeze(1), self._s(part, level).unsqueeze(1)
        if part.flow.has_range:
            mean, variance = self._get("mean", part), self._get("variance", part)
            posterior = mean + s * variance * (own - s * mean) / (1 + s * s * variance)
            x_hat = (resp.unsqueeze(-1) * posterior).sum(1).reshape(-1, *part.shape)
            return Point(x_hat, unknown_scale(part.level_of(level)))
        posterior = torch.log_softmax(self._get("log_probs", part) + s * own, -1)
        mixed = torch.logsumexp(resp.clamp(min=1e-300).log()[..., None, None] + posterior, 1)
        return Categorical(mixed.reshape(-1, *part.shape, mixed.shape[-1]))
