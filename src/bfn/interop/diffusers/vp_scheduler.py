"""The scheduler that puts this library's solvers to ordinary diffusion models."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_utils import KarrasDiffusionSchedulers

from bfn.flows import ContinuousFlow
from bfn.interop.diffusers.schedulers import TableScheduler
from bfn.interop.variance_preserving import VariancePreservingHead, VariancePreservingSchedule

__all__ = ["VPSolverScheduler"]


class VPSolverScheduler(TableScheduler):
    """This library's solvers for ordinary diffusion models: takes the place of DPMSolverMultistepScheduler and its kin.

    ``VPSolverScheduler.from_config(pipe.scheduler.config)`` keeps the model's noise levels and prediction type. Its
    timesteps are not whole numbers: log s is linear between the noise levels that the model was trained on.
    """

    _compatibles = [scheduler.name for scheduler in KarrasDiffusionSchedulers]  # noqa: RUF012

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        beta_start: float = 1e-4,
        beta_end: float = 0.02,
        beta_schedule: str = "linear",
        trained_betas: Sequence[float] | None = None,
        prediction_type: str = "epsilon",
        rescale_betas_zero_snr: bool = False,
        solver: str = "fast-ode",
        grid: str | None = None,
        t_start: float | None = None,
        g: float | None = None,
        tables: Mapping[str, Any] | None = None,
        error_curve: Mapping[str, Any] | None = None,
    ) -> None:
        # The model's own library knows best how its noise levels are made.
        levels = (num_train_timesteps, beta_start, beta_end, beta_schedule, trained_betas)
        self.alphas_cumprod = DDPMScheduler(*levels, rescale_betas_zero_snr=rescale_betas_zero_snr).alphas_cumprod
        schedule = VariancePreservingSchedule(tuple(self.alphas_cumprod.double().tolist()))
        last = len(self.alphas_cumprod) - 1
        self._set_up(ContinuousFlow(schedule=schedule), VariancePreservingHead(prediction_type), last)
