"""Chains of symbols whose next one depends on the last few: counted in a text, and their posterior under evidence."""

from bfn.ngrams.automata import Automaton, DenseAutomaton, SparseAutomaton, posterior_logits, scaled
from bfn.ngrams.backoff import BackoffTables, count_backoff

__all__ = [
    "Automaton",
    "BackoffTables",
    "DenseAutomaton",
    "SparseAutomaton",
    "count_backoff",
    "posterior_logits",
    "scaled",
]
