"""Models from and for other programs: checkpoints of the paper, diffusion models, diffusers, the Hugging Face Hub."""

from bfn.interop.official import (
    PUBLISHED,
    CheckpointMismatchError,
    Configuration,
    configuration,
    convert,
    load_official,
)  # fmt: skip

__all__ = ["PUBLISHED", "CheckpointMismatchError", "Configuration", "configuration", "convert", "load_official"]
