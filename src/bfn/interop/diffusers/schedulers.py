"""Schedulers for diffusers: every solver of this library, from the same tables as the library's own loop.

A Bayesian flow is a variance-preserving diffusion. With the state u of this library at s = sqrt(beta), a scheduler's
``sample`` is

    sample = u / sqrt(1 + s^2) = alpha w(x) + sigma sqrt(kappa) eps        alpha = s sigma,  sigma = 1 / sqrt(1 + s^2)

For continuous data this is the x_t = alpha x + sigma eps of diffusion models. ``scale_model_input`` returns the input
of the network (mu = alpha x_t, or class probabilities theta). The last ``step`` returns the data, or their class
probabilities, as the sample.

``timestep = (1 - t) num_train_timesteps`` decreases from noise to data. ``num_inference_steps`` is the number of
network calls, for every solver, and there are as many ``timesteps``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self, TypeVar

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_utils import KarrasDiffusionSchedulers, SchedulerMixin
from diffusers.utils.outputs import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, NoiseLevel, PartFlow
from bfn.core.heads import Head
from bfn.core.info import VALUE_RANGE, ErrorCurve, ModelInfo, Spread
from bfn.core.model import BFN
from bfn.core.plain import from_plain, to_plain
from bfn.core.sampling import Run
from bfn.core.schedules import ExponentialSchedule, QuadraticSchedule
from bfn.core.solver import plan
from bfn.core.table import Table
from bfn.interop.variance_preserving import VariancePreservingHead, VariancePreservingSchedule
from bfn.solvers.few_step import Calibration

Timestep = int | float | Tensor
Generators = torch.Generator | list[torch.Generator] | None
Init = TypeVar("Init", bound=Callable[..., None])

HEAD_OF_PREDICTION = {"epsilon": "noise", "sample": "data"}
"""Names of predictions in diffusers and the heads of this library for them. Other heads have the same name in both."""

FACTS = {"tables": Mapping[int, Table], "error_curve": ErrorCurve, "calibration": Calibration, "spread": Spread}
"""Types of the facts of a model's info that its solvers need. The config stores them as plain values."""

OTHER_SCHEDULERS = [scheduler.name for scheduler in KarrasDiffusionSchedulers]
"""Schedulers of diffusers that a ``VPSolverScheduler`` can be made from."""


def stores_config(init: Init) -> Init:
    """Store the arguments of a constructor as the config, as ``register_to_config`` does, which has no types."""
    decorate: Callable[[Init], Init] = register_to_config
    return decorate(init)


@dataclass
class BFNSchedulerOutput(BaseOutput):
    """The result of a step.

    Attributes:
        prev_sample: the sample at the next timestep.
        pred_original_sample: predicted data or class probabilities.
    """

    prev_sample: Tensor
    pred_original_sample: Tensor


class TableScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Base class of the schedulers. The constructor of a subclass calls ``_set_up`` with its flow and head."""

    order = 1
    flow: PartFlow
    head: Head
    info: ModelInfo
    timesteps: Tensor
    num_inference_steps: int | None

    def _set_up(self, flow: PartFlow, head: Head, last_timestep: int) -> None:
        self.flow, self.head, self._last_timestep = flow, head, last_timestep
        bound = self.config.get("clip_sample_range", 1.0)
        limits = (-bound, bound) if isinstance(bound, int | float) else (bound[0], bound[1])
        known = {name: from_plain(kind, self.config[name], name) for name, kind in FACTS.items() if self.config[name]}
        self.info = ModelInfo(value_range=limits if self.config.get("clip_sample") else None, **known)
        self.timesteps = torch.arange(last_timestep, -1, -1, dtype=torch.float32)
        self.num_inference_steps = None
        self._table: Table | None = None
        self._time_of: dict[float, float] = {}
        self._run: Run | None = None
        self._run_start = 0

    @property
    def starts_at_zero(self) -> bool:
        """True if the prediction is defined at t = 0."""
        return self.head.starts_at_zero

    def __len__(self) -> int:
        return int(self.config["num_train_timesteps"])

    @property
    def init_noise_sigma(self) -> float:
        """Standard deviation of the first sample: sqrt(kappa) at t = 0, less if the grid starts later."""
        if self._table is None:
            return sqrt(self.flow.kappa)
        return sqrt(self.flow.kappa / (1 + self._s[0] * self._s[0])) * self._table.start

    def set_timesteps(
        self, num_inference_steps: int | None = None, device: str | torch.device | None = None,
        timesteps: Sequence[float] | Tensor | None = None,
    ) -> None:  # fmt: skip
        """Choose the times of the network calls. A run in progress is discarded.

        Args:
            num_inference_steps: number of network calls.
            device: device of ``timesteps``.
            timesteps: decreasing times of the solver's steps, instead of their number. A solver that makes more than
                one call for each step adds its own times between them.
        """
        if (num_inference_steps is None) == (timesteps is None):
            raise UserError("num_inference_steps and timesteps: give exactly one of the two")
        grid = self.config["grid"]
        if timesteps is not None:
            grid = 1 - torch.as_tensor(timesteps, dtype=torch.float64) / self._last_timestep
        self._table = self._make_table(num_inference_steps, grid)
        self._s = self.flow.schedule.s_of(self._table.times)
        timesteps = ((1 - torch.tensor(self._table.times, dtype=torch.float64)) * self._last_timestep).float()
        self._time_of = dict(zip(timesteps.tolist(), self._table.times, strict=True))
        self.timesteps = timesteps.to(device)
        self.num_inference_steps = self._table.nfe
        self._run = None

    def scale_model_input(self, sample: Tensor, timestep: Timestep) -> Tensor:
        """Return the input of the network, like the sample, at one timestep or at timesteps (batch,)."""
        level = self._level(timestep, sample)
        inputs: Tensor = self.head.inputs(self.flow, _precise(sample) * _norm(level), level).to(sample.dtype)
        return inputs

    def step(
        self, model_output: Tensor, timestep: Timestep, sample: Tensor, generator: Generators = None,
        return_dict: bool = True,
    ) -> Any:  # fmt: skip
        """Return the sample at the next timestep.

        Args:
            model_output: the network's output on ``scale_model_input(sample, timestep)``.
            timestep: the next one of ``timesteps``; a run may start at any of them.
            sample: the sample at this timestep.
            generator: source of the noise.
            return_dict: whether to return a ``BFNSchedulerOutput`` or a tuple.
        """
        run, level = self._run_at(timestep, sample), self._level(timestep, sample)
        u = _precise(sample) * _norm(level)
        if run.table.draws and isinstance(generator, list):
            raise UserError(f"a list of generators: solver {self.config['solver']!r} draws from one; give one")
        output = self.head.output(self.flow, model_output.to(u.dtype), u, level)
        prediction = run.prediction(output, generator if isinstance(generator, torch.Generator) else None)
        run.keep(prediction)
        if run.at_end:
            new = run.final()
            self._run = None
        else:
            new = run.step(u, lambda: randn_tensor(u.shape, generator=generator, device=u.device, dtype=u.dtype))
            s = self._s[self._run_start + run.index]
            new = new / sqrt(1 + s * s)
        result = (new.to(sample.dtype), prediction.to(sample.dtype))
        return BFNSchedulerOutput(*result) if return_dict else result

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return alpha w(x) + sigma sqrt(kappa) noise, like the noise, at timesteps (batch,), or (1,) for all."""
        level = self._level(timesteps.to(noise.device).expand(len(noise)), noise)
        return (self.flow.noised(original_samples, level.s, noise) / _norm(level)).to(noise.dtype)

    @classmethod
    def from_model(cls, model: BFN, **settings: Any) -> Self:
        """Return the scheduler of a model of this library.

        Args:
            model: the model.
            settings: arguments of the constructor, such as ``solver``.
        """
        head = to_plain(model.head)
        name = head.pop("name")
        names = {head: name for name, head in HEAD_OF_PREDICTION.items()}
        prediction = {"prediction_type": names.get(name, name), "prediction_settings": head or None}
        facts = {name: to_plain(getattr(model.info, name)) or None for name in FACTS}
        return cls(**{**cls._model_settings(model), **prediction, **facts, **settings})

    @classmethod
    def _model_settings(cls, model: BFN) -> dict[str, Any]:
        """Return the arguments of the constructor that follow from a model's flow and range."""
        name = cls.__name__
        raise UserError(f"{name}: it is made from a diffusion model's scheduler, by from_config, not from a BFN")

    def _make_table(self, nfe: int | None, grid: str | Tensor | None) -> Table:
        t_start = self.config["t_start"] if not isinstance(grid, Tensor) else None
        return plan(self, self.config["solver"], nfe, grid=grid, t_start=t_start, g=self.config["g"]).table

    def _level(self, timestep: Timestep, sample: Tensor) -> NoiseLevel:
        """Return the noise level of one timestep (exact for those of the table) or of a batch of them."""
        like, ndim = _precise(sample), sample.ndim - 1
        if isinstance(timestep, Tensor) and timestep.numel() > 1:
            return self.flow.noise_level(1 - timestep.to(like) / self._last_timestep, len(sample), ndim, like)
        t = self._time_of.get(float(timestep), 1 - float(timestep) / self._last_timestep)
        return self.flow.noise_level(t, len(sample), ndim, like)

    def _run_at(self, timestep: Timestep, sample: Tensor) -> Run:
        """Return the run that this timestep continues, or a new one that starts at it."""
        if self._table is None:
            raise UserError("step before set_timesteps: call scheduler.set_timesteps(num_inference_steps) first")
        value = f"timestep={float(timestep):g}"
        if float(timestep) not in self._time_of:
            raise UserError(f"{value}: expected one of scheduler.timesteps")
        index = self._table.times.index(self._time_of[float(timestep)])
        if self._run is not None and index == self._run_start + self._run.index:
            return self._run
        if self._run is not None and index != 0:
            expected = float(self.timesteps[self._run_start + self._run.index])
            raise UserError(f"{value}: expected {expected:g}, the next one; set_timesteps starts a new run")
        table = self._table
        if index > 0:
            # A run that begins later (image to image) is a run on the rest of the grid: it has no history yet.
            table = self._make_table(None, torch.tensor(table.times[index:], dtype=torch.float64))
            if table.times != self._table.times[index:]:
                raise UserError(
                    f"{value}: solver {self.config['solver']!r} makes several calls a step and must begin at the first "
                    "timestep; choose another, or set_timesteps(timesteps=...)"
                )
        u = _precise(sample)
        self._run, self._run_start = Run(table.bind(self.flow, u), u, self.info[VALUE_RANGE]), index
        return self._run


class BFNScheduler(TableScheduler):
    """Sampler of Bayesian flow networks on continuous data.

    Args:
        num_train_timesteps: timestep of pure noise.
        sigma_1: of the model's flow.
        prediction_type: "epsilon", "sample", or the name of a head of this library, such as "preconditioned".
        prediction_settings: parameters of the head, such as {"data_std": 0.5}.
        solver: a name from ``bfn.solvers.names("continuous")``.
        grid, t_start, g: as in ``bfn.sample``.
        clip_sample: whether predicted data are clipped.
        clip_sample_range: data are clipped to +-clip_sample_range, or to (lowest, highest) if it is a pair.
        tables, error_curve, calibration, spread: facts of the model for solvers that need them; ``from_model``
            fills them in.
    """

    @stores_config
    def __init__(
        self, num_train_timesteps: int = 1000, sigma_1: float = 1e-3, prediction_type: str = "epsilon",
        prediction_settings: Mapping[str, Any] | None = None,
        solver: str = "auto", grid: str | None = None, t_start: float | None = None, g: float | None = None,
        clip_sample: bool = False, clip_sample_range: float | Sequence[float] = 1.0,
        tables: Mapping[str, Any] | None = None, error_curve: Mapping[str, Any] | None = None,
        calibration: Mapping[str, Any] | None = None, spread: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        flow = ContinuousFlow(sigma_1)
        self._set_up(flow, _make_head(prediction_type, prediction_settings, flow), num_train_timesteps)

    @classmethod
    def _model_settings(cls, model: BFN) -> dict[str, Any]:
        flow, clip = model.flow, model.info[VALUE_RANGE]
        if not isinstance(flow, ContinuousFlow) or not isinstance(flow.schedule, ExponentialSchedule):
            raise UserError(f"{flow}: {cls.__name__} is for continuous flows with an exponential schedule")
        clipping = {"clip_sample": True, "clip_sample_range": list(clip)} if clip else {}
        return {"sigma_1": flow.schedule.sigma_1, **clipping}


class DiscreteBFNScheduler(TableScheduler):
    """Sampler of Bayesian flow networks on classes. Samples have a last axis of n_classes.

    The last step returns class probabilities; ``argmax(-1)`` of them gives the data.

    Args:
        n_classes: number of classes.
        beta_1: of the model's flow.
        prediction_type: "logits", or "logit" for 2 classes from one number.
        others: as in ``BFNScheduler``.
    """

    @stores_config
    def __init__(
        self, n_classes: int, num_train_timesteps: int = 1000, beta_1: float = 0.75**2, prediction_type: str = "logits",
        prediction_settings: Mapping[str, Any] | None = None,
        solver: str = "auto", grid: str | None = None, t_start: float | None = None, g: float | None = None,
        tables: Mapping[str, Any] | None = None, error_curve: Mapping[str, Any] | None = None,
        calibration: Mapping[str, Any] | None = None, spread: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        flow = DiscreteFlow(n_classes, beta_1)
        self._set_up(flow, _make_head(prediction_type, prediction_settings, flow), num_train_timesteps)

    @classmethod
    def _model_settings(cls, model: BFN) -> dict[str, Any]:
        flow = model.flow
        if not isinstance(flow, DiscreteFlow) or not isinstance(flow.schedule, QuadraticSchedule):
            raise UserError(f"{flow}: {cls.__name__} is for discrete flows with a quadratic schedule")
        return {"n_classes": flow.n_classes, "beta_1": flow.schedule.beta_1}


class VPSolverScheduler(TableScheduler):
    """The solvers of this library for ordinary diffusion models, in place of DPMSolverMultistepScheduler and the like.

    ``VPSolverScheduler.from_config(pipe.scheduler.config)`` keeps the model's noise levels and prediction type.
    Timesteps are not whole numbers: log s is linear between the noise levels that the model was trained on.

    Args:
        num_train_timesteps, beta_start, beta_end, beta_schedule, trained_betas, prediction_type,
            rescale_betas_zero_snr: as in ``diffusers.DDPMScheduler``.
        others: as in ``BFNScheduler``.
    """

    _compatibles = OTHER_SCHEDULERS

    @stores_config
    def __init__(
        self, num_train_timesteps: int = 1000, beta_start: float = 1e-4, beta_end: float = 0.02,
        beta_schedule: str = "linear", trained_betas: Sequence[float] | None = None, prediction_type: str = "epsilon",
        rescale_betas_zero_snr: bool = False,
        solver: str = "fast-ode", grid: str | None = None, t_start: float | None = None, g: float | None = None,
        tables: Mapping[str, Any] | None = None, error_curve: Mapping[str, Any] | None = None,
        calibration: Mapping[str, Any] | None = None, spread: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        # diffusers itself makes the noise levels, so that they are the same in every version of it.
        levels = (num_train_timesteps, beta_start, beta_end, beta_schedule, trained_betas)
        self.alphas_cumprod = DDPMScheduler(*levels, rescale_betas_zero_snr=rescale_betas_zero_snr).alphas_cumprod
        schedule = VariancePreservingSchedule(tuple(self.alphas_cumprod.double().tolist()))
        last = len(self.alphas_cumprod) - 1
        self._set_up(ContinuousFlow(schedule=schedule), VariancePreservingHead(prediction_type), last)


def _make_head(prediction_type: str, settings: Mapping[str, Any] | None, flow: PartFlow) -> Head:
    name = HEAD_OF_PREDICTION.get(prediction_type, prediction_type)
    head: Head = from_plain(Head, {"name": name, **(settings or {})}, "prediction_type")
    if head.kind != flow.kind:
        raise UserError(f"prediction_type={prediction_type!r}: it is for {head.kind} data, the flow is {flow.kind}")
    return head


def _precise(sample: Tensor) -> Tensor:
    """Return the sample in float32 or better: later steps amplify the rounding of a state."""
    return sample.to(torch.promote_types(sample.dtype, torch.float32))


def _norm(level: NoiseLevel) -> float | Tensor:
    """Return sqrt(1 + s^2), the factor between a sample and the state u."""
    return (1 + level.s * level.s) ** 0.5
