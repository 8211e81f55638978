"""Other people's models and tools: the published BFN checkpoints."""

from bfn.interop.official import CheckpointMismatchError, convert, load_official
from bfn.interop.official_settings import PUBLISHED, Configuration, configuration

__all__ = ["PUBLISHED", "CheckpointMismatchError", "Configuration", "configuration", "convert", "load_official"]
