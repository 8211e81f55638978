"""The paper's tables and figures, made again on models at hand: ``bfn reproduce``. Nothing else imports this."""

from bfn.paper.report import Options
from bfn.paper.reproduce import EXPERIMENTS, QUICK, experiment, reproduce

__all__ = ["EXPERIMENTS", "QUICK", "Options", "experiment", "reproduce"]
