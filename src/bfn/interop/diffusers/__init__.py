"""diffusers (extra ``diffusers``): schedulers with every solver of this library, pipelines, and networks both ways.

pipe = BFNPipeline.from_model(bfn.load("mnist"), solver="fast-ode")
pipe.scheduler = VPSolverScheduler.from_config(other.scheduler.config)      # the solvers, on any diffusion model
"""

import diffusers as _diffusers

from bfn.interop.diffusers.pipelines import BFNNetwork, BFNPipeline, BFNTextPipeline, TextPipelineOutput, UNetNetwork
from bfn.interop.diffusers.schedulers import BFNScheduler, BFNSchedulerOutput, DiscreteBFNScheduler, VPSolverScheduler

__all__ = [
    "BFNNetwork",
    "BFNPipeline",
    "BFNScheduler",
    "BFNSchedulerOutput",
    "BFNTextPipeline",
    "DiscreteBFNScheduler",
    "TextPipelineOutput",
    "UNetNetwork",
    "VPSolverScheduler",
]

# ``DiffusionPipeline.from_pretrained`` looks up the class that a saved pipeline names among diffusers' own, and has no
# other place for those of other packages.
for _pipeline in (BFNPipeline, BFNTextPipeline):
    setattr(_diffusers, _pipeline.__name__, _pipeline)
