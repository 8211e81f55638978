"""The paper's SDE view: linear SDEs, scores, the reverse SDE and the probability-flow ODE.

The coordinates of the paper, mu (continuous data) and z (discrete data), are the state u in other units,

    v = sigma(t) u = alpha(t) w(x) + sqrt(kappa) sigma(t) eps          alpha = sigma s

    ==========  ===============================  ======================
                continuous, v = mu               discrete, v = z = y
    ==========  ===============================  ======================
    sigma       s / (1 + s^2)                    s
    alpha       gamma = s^2 / (1 + s^2)          beta = s^2
    F or H      -gamma' / gamma                  -beta' / beta
    G^2 or L^2  gamma'                           K beta'
    ==========  ===============================  ======================

F, G, H, L are those of the paper (Theorems 4.1 and 5.1). Primes are derivatives in our direction of time, with the data
at t = 1; those of the paper have the other sign. Noise is added as t decreases: dv = F v d(1-t) + G dB.

The functions ``target_from_source`` convert between the message ``w_hat = E[w(x) | u]``, the noise, the score and the
data that a network can predict.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import Flow, PartFlow
from bfn.core.heads import Scale, message_from_noise
from bfn.core.schedules import Time

__all__ = [
    "InitialGaussian", "LinearSDE", "data_from_message", "message_from_data", "message_from_noise",
    "message_from_score", "message_moments", "noise_from_message", "score_from_message",
]  # fmt: skip


def noise_from_message(w_hat: Tensor, u: Tensor, s: Scale, kappa: float) -> Tensor:
    """Return eps_hat = (u - s w_hat) / sqrt(kappa)."""
    return (u - s * w_hat) / math.sqrt(kappa)


def score_from_message(w_hat: Tensor, u: Tensor, s: Scale, kappa: float) -> Tensor:
    """Return grad log p(y) = -(y - beta w_hat) / (kappa beta) = -(u - s w_hat) / (kappa s) (paper, eq. dbfn-dsm)."""
    return (s * w_hat - u) / (kappa * s)


def message_from_score(score: Tensor, u: Tensor, s: Scale, kappa: float) -> Tensor:
    """Return w_hat = u / s + kappa score(y)."""
    return u / s + kappa * score


def message_from_data(prediction: Tensor, flow: Flow) -> Tensor:
    """Return w_hat of a prediction: x_hat itself, or K p - 1 for class probabilities p."""
    scale, shift = flow.message_map
    return prediction if _is_identity(flow) else prediction * scale + shift


def _is_identity(flow: Flow) -> bool:
    """Return True if predictions are messages, as for numbers, so that there is nothing to compute."""
    scale, shift = flow.message_map
    return isinstance(scale, float) and (scale, shift) == (1.0, 0.0)


def data_from_message(w_hat: Tensor, flow: Flow) -> Tensor:
    """Return the prediction of a message; the inverse of ``message_from_data``."""
    scale, shift = flow.message_map
    return w_hat if _is_identity(flow) else (w_hat - shift) / scale


@dataclass(frozen=True)
class LinearSDE:
    """The noising process of a flow in the paper's coordinate v (mu or z), and its reverse SDE and ODE.

    Attributes:
        flow: flow of one kind of data.
    """

    flow: PartFlow

    def sigma(self, t: Time) -> Tensor:
        """Return the factor sigma of v = sigma(t) u."""
        s = self.flow.schedule.s(t)
        return s * self.flow.shrinkage(s)

    def alpha(self, t: Time) -> Tensor:
        """Return the coefficient of the mean: gamma(t) or beta(t)."""
        return self.sigma(t) * self.flow.schedule.s(t)

    def alpha_slope(self, t: Time) -> Tensor:
        """Return d alpha / dt: gamma' = beta' / (1 + beta)^2, or beta'."""
        return self.flow.schedule.slope(t) * self.flow.shrinkage(self.flow.schedule.s(t)) ** 2

    def drift(self, t: Time) -> Tensor:
        """Return the paper's F(t) or H(t), which is infinite at t = 0."""
        return -self.alpha_slope(t) / self.alpha(t)

    def diffusion(self, t: Time) -> Tensor:
        """Return the paper's G(t) or L(t)."""
        return (self.flow.kappa * self.alpha_slope(t)).sqrt()

    def score(self, w_hat: Tensor, v: Tensor, t: Time) -> Tensor:
        """Return grad log p_t(v) = -(v - alpha w_hat) / (kappa sigma^2)."""
        return (self.alpha(t).to(v) * w_hat - v) / (self.flow.kappa * self.sigma(t) ** 2).to(v)

    def reverse(self, w_hat: Tensor, v: Tensor, t: Time, g: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return drift and diffusion of generation, dv = drift dt + diffusion dB, as t increases.

        g = 1 is the reverse SDE (paper, eqs. cbfn-para-reverse-sde, dbfn-para-reverse-sde), g = 0 the
        probability-flow ODE (eqs. cbfn-para-ode, dbfn-para-ode).
        """
        diffusion = self.diffusion(t).to(v)
        pull = (1 + g * g) / 2 * diffusion**2 * self.score(w_hat, v, t)
        return pull - self.drift(t).to(v) * v, g * diffusion


def message_moments(flow: Flow, x: Tensor) -> tuple[Tensor, float]:
    """Return the mean of w(x) over data, and the average variance of its entries."""
    w = flow.message(x, dtype=torch.float64)
    mean = w.mean(0)
    return mean, float((w - mean).square().mean())


@dataclass(frozen=True)
class InitialGaussian:
    """The best isotropic Gaussian for the first state (paper, app. D.1), for ``sample(initial=...)``.

    Args:
        mean: E[w(x)], like a state.
        variance: average variance of the entries of w(x). With mean 0 and variance 0 it is a standard normal.

    >>> InitialGaussian(*bfn.sde.message_moments(flow, x))  # doctest: +SKIP
    """

    mean: Tensor
    variance: float

    def __call__(self, flow: Flow, t_start: float, noise: Tensor) -> Tensor:
        """Return u / sqrt(kappa) at t_start from standard normal noise."""
        if len(flow.parts) > 1:
            raise UserError("InitialGaussian: it is for data of one kind, and these have parts; leave it out")
        s, kappa = float(flow.schedule.s(t_start)), float(flow.noise_variance)
        if self.mean.shape != noise.shape[-self.mean.ndim :]:
            expected = tuple(noise.shape[1:])
            raise UserError(f"InitialGaussian with a mean of shape {tuple(self.mean.shape)}: expected {expected}")
        mean, std = self.mean * (s / math.sqrt(kappa)), math.sqrt(1 + s * s * self.variance / kappa)
        return noise * std + mean.to(noise)
