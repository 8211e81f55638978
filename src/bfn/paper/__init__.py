"""Measurements of models and samplers: what a sample is judged by, and how settings are compared."""

from bfn.quality.judges import METRICS, Judge, Measure, Measured, judge_for
from bfn.quality.measuring import Record, Setting, default_store, identify

__all__ = [
    "METRICS",
    "Judge",
    "Measure",
    "Measured",
    "Record",
    "Setting",
    "default_store",
    "identify",
    "judge_for",
]
