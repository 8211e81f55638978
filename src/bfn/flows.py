"""Flows: how a kind of data is noised, shown to the network, and read back.

Continuous and discrete data share one process. With ``beta(t)`` the accuracy gathered by time t and ``s = sqrt(beta)``,

    evidence            y = beta w(x) + sqrt(kappa beta) eps          eps ~ N(0, I)
    whitened evidence   u = y / s = s w(x) + sqrt(kappa) eps          u(t = 0) ~ N(0, kappa I), exactly

and a kind of data is no more than its message ``w(x)``, its ``kappa``, and how the network sees the state:

    ================  ==============================  ==================================
                      continuous                      discrete, K classes
    ================  ==============================  ==================================
    message w(x)      x                               K one_hot(x) - 1
    kappa             1                               K
    network input     mu = u s / (1 + s^2)            theta = softmax(s u)
    prediction        x_hat                           class probabilities p
    w_hat             x_hat                           K p - 1
    ================  ==============================  ==================================

The state kept everywhere is ``u``: it has no singularity at t = 0 and stays finite at any accuracy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.arguments import as_tensor, check_whole
from bfn.errors import UserError
from bfn.process import NoiseLevel, OneKind, Shape
from bfn.schedules import ExponentialSchedule, QuadraticSchedule, Schedule, Time, stratified_times

__all__ = ["FLOWS", "ContinuousFlow", "DiscreteFlow", "Flow", "NoiseLevel", "Shape"]

SEPARATION = 3.0
"""Standard deviations between two classes at t = 1, where nothing else is asked for."""
REST = 0.01
"""What is left unknown of numbers at t = 1 where nothing else is asked for, as a share of their spread."""


class Flow(OneKind, ABC):
    """A kind of data: its message, kappa, network input and decoding."""

    kind: ClassVar[str]
    has_range: ClassVar[bool] = False
    """Whether predictions are values of the data, which have a density and may be clipped to a range."""
    unit_std: ClassVar[float] = 1.0
    """About the standard deviation of w(x) / sqrt(kappa) over data."""
    schedule: Schedule

    @property
    def parts(self) -> Mapping[str, "Flow"]:
        """The flows that make up this one, by the names of their parts; of one kind of data alone, itself."""
        return {"": self}

    def for_shape(self, data_shape: Any) -> "Flow":
        """The flow for data of that shape; only parts that lie side by side need to know."""
        return self

    @property
    @abstractmethod
    def kappa(self) -> float:
        """Variance of the whitened noise."""

    @property
    @abstractmethod
    def message_map(self) -> tuple[float, float]:
        """(scale, shift) of the affine map from a prediction to its message, w_hat = scale * prediction + shift."""

    @property
    @abstractmethod
    def n_values(self) -> int | None:
        """How many values a variable can take; None where it is any number."""

    @abstractmethod
    def state_shape(self, data_shape: Shape) -> Shape:
        """Shape of one sample's state u."""

    @abstractmethod
    def check(self, x: Tensor, data_shape: Shape) -> None:
        """Raise a UserError that says what is wrong if x is not a batch of such data."""

    @abstractmethod
    def message(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """w(x), (batch, *state_shape)."""

    @abstractmethod
    def noised(self, x: Tensor, s: float | Tensor, eps: Tensor) -> Tensor:
        """u = s w(x) + sqrt(kappa) eps for standard normal eps of the state's shape."""

    @abstractmethod
    def network_input(self, u: Tensor, s: float | Tensor) -> Tensor:
        """What the network is shown: mu or theta, like u."""

    @abstractmethod
    def decode(self, prediction: Tensor) -> Tensor:
        """The data that a prediction stands for."""

    @abstractmethod
    def visible(self, w: Tensor) -> Tensor:
        """A message without what the network is never shown: of classes the constant that softmax drops."""

    @abstractmethod
    def shrinkage(self, s: Tensor) -> Tensor:
        """What turns s u into the paper's coordinate: 1 / (1 + s^2) for mu, 1 for z."""

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """Data as floats to look at and to compare: numbers as they are, classes spread evenly over [-1, 1]."""

    @abstractmethod
    def expected_values(self, prediction: Tensor) -> Tensor:
        """:meth:`values` on average under a prediction, shaped like the data."""

    @abstractmethod
    def errors(self, x: Tensor, prediction: Tensor) -> Tensor:
        """||w(x) - w_hat||^2 / kappa of each variable, like x."""

    def with_schedules(self, schedules: Mapping[str, Schedule]) -> "Flow":
        """The same flow on other schedules, one for each of :attr:`parts`."""
        return replace(self, schedule=schedules[""])  # type: ignore[type-var]

    def pack(self, x: Any, data_shape: Any) -> Tensor:
        """Data as a user gives them, checked, as the one tensor that the library works with."""
        self.check(x, data_shape)
        packed: Tensor = x
        return packed

    def draw_times(self, n: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Times to train n samples at, stratified: (n, *time_shape), float64."""
        return stratified_times(n, generator, device)

    def noise_scale(self, like: Tensor) -> float | Tensor:
        """sqrt(kappa), to multiply standard normal noise by."""
        return math.sqrt(self.kappa)

    def rate(self, t: Tensor, data_ndim: int) -> Tensor:
        """d beta / dt at times (batch,), to multiply values like the data by: float64, (batch, 1, ...)."""
        return self.schedule.slope(t).view(-1, *(1,) * data_ndim)

    def gain(self, t_start: Tensor, t_end: Tensor, data_ndim: int) -> Tensor:
        """beta(t_end) - beta(t_start), in the same form."""
        return self.schedule.increment(t_start, t_end).view(-1, *(1,) * data_ndim)

    def squared_error(self, x: Tensor, prediction: Tensor) -> Tensor:
        """:meth:`errors` averaged over the data's dimensions: (batch,)."""
        errors = self.errors(x, prediction)
        return errors.flatten(1).mean(1) if errors.ndim > 1 else errors

    def noise_level(self, t: Time, batch: int, state_ndim: int, like: Tensor) -> NoiseLevel:
        """The noise level of a batch: t a number (the same for all) or (batch,); ``like`` gives dtype and device."""
        if isinstance(t, Tensor) and t.ndim == 1:
            s = self.schedule.s(t).to(like).view(batch, *(1,) * state_ndim)
            return NoiseLevel(t.to(like), s)
        times = torch.full((batch,), float(t), dtype=like.dtype, device=like.device)
        return NoiseLevel(times, float(self.schedule.s(t)))

    def noise_levels(self, times: Sequence[float], batch: int, state_ndim: int, like: Tensor) -> list[NoiseLevel]:
        """:meth:`noise_level` of each of several times, the same for all of a batch."""
        told = torch.tensor(times, dtype=like.dtype, device=like.device).unsqueeze(1).repeat(1, batch)
        return [*map(NoiseLevel, told.unbind(), self.schedule.s_of(times))]


def _check_shape(x: Tensor, data_shape: Shape) -> None:
    if not isinstance(x, Tensor):
        raise UserError(f"data of type {type(x).__name__}: expected a tensor, data of one kind have no parts")
    if x.ndim == 0 or tuple(x.shape[1:]) != tuple(data_shape):
        raise UserError(f"data of shape {tuple(x.shape)}: expected (batch, *data_shape) with data_shape={data_shape}")


@dataclass(frozen=True, init=False)
class ContinuousFlow(Flow):
    """Real-valued data: w(x) = x, kappa = 1, beta(t) = sigma_1^(-2t) - 1.

    sigma_1: standard deviation of what is unknown at t = 1; unused where another ``schedule`` is given.

    >>> ContinuousFlow(sigma_1=1e-3).schedule.beta(1.0)
    tensor(999999.0000, dtype=torch.float64)
    """

    schedule: Schedule
    kind: ClassVar[str] = "continuous"
    has_range: ClassVar[bool] = True
    unit_std: ClassVar[float] = 0.5

    def __init__(self, sigma_1: float = 1e-3, *, schedule: Schedule | None = None) -> None:
        object.__setattr__(self, "schedule", schedule or ExponentialSchedule(sigma_1))

    @classmethod
    def for_data(cls, x: Any, rest: float = REST) -> "ContinuousFlow":
        """The flow for numbers of the spread of x, (n, ...): sigma_1 is the share ``rest`` of their standard deviation.

        The process starts from a standard normal about 0: data of quite another scale are refused.
        """
        x = as_tensor("data", x).double()
        std, mean = float(x.std(correction=0)), float(x.mean())
        if not (std > 0 and rest * std < 0.5 and abs(mean) <= 10 * max(std, 1.0)):
            raise UserError(
                f"data of mean {mean:.4g} and standard deviation {std:.4g}: expected about 0 and 1; "
                "subtract the mean and divide by the standard deviation first"
            )
        return cls(rest * std)

    @property
    def kappa(self) -> float:
        return 1.0

    @property
    def message_map(self) -> tuple[float, float]:
        return 1.0, 0.0

    @property
    def n_values(self) -> int | None:
        return None

    def state_shape(self, data_shape: Shape) -> Shape:
        return tuple(data_shape)

    def check(self, x: Tensor, data_shape: Shape) -> None:
        _check_shape(x, data_shape)
        if not x.is_floating_point():
            raise UserError(f"data of type {x.dtype}: continuous data are floats; convert and scale them first")
        if not torch.isfinite(x).all():
            raise UserError(f"{int((~torch.isfinite(x)).sum())} values are NaN or infinite: clean the data first")

    def message(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return x.to(dtype or x.dtype)

    def noised(self, x: Tensor, s: float | Tensor, eps: Tensor) -> Tensor:
        return x.to(eps.dtype) * s + eps

    def network_input(self, u: Tensor, s: float | Tensor) -> Tensor:
        return u * (s / (1 + s * s))

    def decode(self, prediction: Tensor) -> Tensor:
        return prediction

    def visible(self, w: Tensor) -> Tensor:
        return w

    def shrinkage(self, s: Tensor) -> Tensor:
        return 1 / (1 + s * s)

    def values(self, x: Tensor) -> Tensor:
        return x.float()

    def expected_values(self, prediction: Tensor) -> Tensor:
        return prediction

    def errors(self, x: Tensor, prediction: Tensor) -> Tensor:
        return (prediction - x).square()


@dataclass(frozen=True, init=False)
class DiscreteFlow(Flow):
    """Classes 0..K-1: w(x) = K one_hot(x) - 1, kappa = K, beta(t) = beta_1 t^2.

    beta_1: the accuracy at t = 1; 18 / K if None, by which any two classes end 3 standard deviations apart
        (:meth:`with_separation`). The paper's text8 has 0.75**2.

    No one-hot tensor is ever built where a scatter does: K may be tens of thousands.

    >>> DiscreteFlow(n_classes=4, beta_1=2.0).message(torch.tensor([[2]]))
    tensor([[[-1., -1.,  3., -1.]]])
    """

    n_classes: int
    schedule: Schedule
    kind: ClassVar[str] = "discrete"

    def __init__(self, n_classes: int, beta_1: float | None = None, *, schedule: Schedule | None = None) -> None:
        if isinstance(n_classes, int) and n_classes < 2:
            raise UserError(f"n_classes={n_classes}: a discrete variable needs at least 2 classes")
        object.__setattr__(self, "n_classes", check_whole("n_classes", n_classes, 2, 10**9))
        beta_1 = 2 * SEPARATION**2 / n_classes if beta_1 is None else beta_1
        object.__setattr__(self, "schedule", schedule or QuadraticSchedule(beta_1))

    @classmethod
    def with_separation(cls, n_classes: int, c: float = SEPARATION) -> "DiscreteFlow":
        """beta_1 = 2 c^2 / K: at t = 1 two classes are c = s_1 sqrt(K/2) standard deviations apart, for any K.

        The evidence alone then prefers a given wrong class to the right one with probability Phi(-c).
        """
        if not 0 < c < math.inf:
            raise UserError(f"c={c}: expected a positive, finite number of standard deviations, such as 3")
        return cls(n_classes, 2 * c * c / max(n_classes, 1))

    @property
    def kappa(self) -> float:
        return float(self.n_classes)

    @property
    def message_map(self) -> tuple[float, float]:
        return float(self.n_classes), -1.0

    @property
    def n_values(self) -> int | None:
        return self.n_classes

    def state_shape(self, data_shape: Shape) -> Shape:
        return (*data_shape, self.n_classes)

    def check(self, x: Tensor, data_shape: Shape) -> None:
        _check_shape(x, data_shape)
        if x.is_floating_point() or x.is_complex() or x.dtype is torch.bool:
            raise UserError(f"data of type {x.dtype}: discrete data are integer classes 0..{self.n_classes - 1}")
        if x.numel() and not (int(x.min()) >= 0 and int(x.max()) < self.n_classes):
            expected = f"expected 0..{self.n_classes - 1} for n_classes={self.n_classes}"
            raise UserError(f"classes from {int(x.min())} to {int(x.max())}: {expected}")

    def message(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        w = torch.full((*x.shape, self.n_classes), -1.0, dtype=dtype or torch.get_default_dtype(), device=x.device)
        return w.scatter_(-1, x.long().unsqueeze(-1), self.n_classes - 1.0)

    def noised(self, x: Tensor, s: float | Tensor, eps: Tensor) -> Tensor:
        u = eps * self.kappa**0.5 - s
        at_class = torch.as_tensor(s * self.n_classes, dtype=u.dtype, device=u.device).expand(*x.shape, 1)
        noised: Tensor = u.scatter_add_(-1, x.long().unsqueeze(-1), at_class)
        return noised

    def network_input(self, u: Tensor, s: float | Tensor) -> Tensor:
        return torch.softmax(u * s, -1)

    def decode(self, prediction: Tensor) -> Tensor:
        return prediction.argmax(-1)

    def visible(self, w: Tensor) -> Tensor:
        return w - w.amax(-1, keepdim=True)

    def shrinkage(self, s: Tensor) -> Tensor:
        return torch.ones_like(s)

    def values(self, x: Tensor) -> Tensor:
        return x.float() * (2 / (self.n_classes - 1)) - 1

    def expected_values(self, prediction: Tensor) -> Tensor:
        return prediction @ torch.linspace(-1, 1, self.n_classes, dtype=prediction.dtype, device=prediction.device)

    def errors(self, x: Tensor, prediction: Tensor) -> Tensor:
        minus_one = prediction.new_tensor(-1.0).expand(*x.shape, 1)
        error = prediction.scatter_add(-1, x.long().unsqueeze(-1), minus_one)
        return self.n_classes * error.square().sum(-1)


FLOWS: dict[str, type[Flow]] = {"continuous": ContinuousFlow, "discrete": DiscreteFlow}
"""Flows by the name that a stored config has."""
