"""What samples are judged by.

A judge is a list of parts, each with one or a few measures; all see the same samples, and real data go through the
same code, so every figure can be read beside what a real sample of the same size gets. All intervals are at 95 %:
bootstrap for Frechet distances, divergences and entropies; Wilson's for shares of samples; the clustered standard
error for shares of words, since words of one text err together.
"""

from bfn.quality.choice import METRICS, judge_for
from bfn.quality.judge import Judge, Part
from bfn.quality.measure import Measure, Measured
from bfn.quality.parts import Copies, Digits, Frechet, Neighbours, Spelling, pooled

__all__ = [
    "METRICS",
    "Copies",
    "Digits",
    "Frechet",
    "Judge",
    "Measure",
    "Measured",
    "Neighbours",
    "Part",
    "Spelling",
    "judge_for",
    "pooled",
]
