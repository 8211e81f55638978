"""Other people's models and tools: the published BFN checkpoints."""

from bfn.interop.official import (
    PUBLISHED,
    CheckpointMismatchError,
    Configuration,
    configuration,
    convert,
    load_official,
)

__all__ = ["PUBLISHED", "CheckpointMismatchError", "Configuration", "configuration", "convert", "load_official"]
