"""Chains of symbols whose next one depends on the last few: counted in a text, and their posterior under evidence."""

from bfn.ngrams.automata import DenseAutomaton, SparseAutomaton
from bfn.ngrams.backoff import BackoffTables, count_backoff
from bfn.ngrams.drawing import draw_strings
from bfn.ngrams.falling import FallingAutomaton
from bfn.ngrams.posterior import Automaton, posterior_logits, scaled
from bfn.ngrams.telling import count_telling

__all__ = [
    "Automaton",
    "BackoffTables",
    "DenseAutomaton",
    "FallingAutomaton",
    "SparseAutomaton",
    "count_backoff",
    "count_telling",
    "draw_strings",
    "posterior_logits",
    "scaled",
]
