"""Pictures of how samples form, what solvers do, and what was measured.

Every function draws on the matplotlib axes it is given, or on those of a new figure, and returns them;
:func:`save` writes the figure. Needs matplotlib: ``pip install 'bayesian-flow[plot]'``.
"""

from bfn.viz.losses import loss_by_t
from bfn.viz.paths import Paths, plane, record, simplex, trajectories
from bfn.viz.quality import quality
from bfn.viz.solvers import nodes, table
from bfn.viz.style import save

__all__ = ["Paths", "loss_by_t", "nodes", "plane", "quality", "record", "save", "simplex", "table", "trajectories"]
