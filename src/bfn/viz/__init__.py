"""Pictures of samples, of sampling paths, of solvers and of measured quality.

Sheets, lines of text and animations (``pictures``, ``animation``) need Pillow: ``pip install 'bayesian-flow[cli]'``.
Plots need matplotlib: ``pip install 'bayesian-flow[plot]'``. Each draws on the axes it is given, or on those of a new
figure, and returns them; ``save`` writes the figure. Both are imported where they are first used: training draws
sheets where no matplotlib is installed.
"""

from bfn.viz.pictures import (
    Recorder,
    lines,
    molecule_sheet,
    sheet,
    side_by_side,
    text_picture,
    write_animation,
    write_picture,
    write_samples,
)  # fmt: skip
from bfn.viz.plots import (
    Paths,
    against_calls,
    colour,
    loss_by_t,
    nodes,
    on,
    plane,
    quality,
    record,
    save,
    simplex,
    table,
)

__all__ = [
    "Paths", "Recorder", "against_calls", "colour", "lines", "loss_by_t", "molecule_sheet", "nodes", "on", "plane",
    "quality", "record", "save", "sheet", "side_by_side", "simplex", "table", "text_picture", "write_animation",
    "write_picture", "write_samples",
]  # fmt: skip
