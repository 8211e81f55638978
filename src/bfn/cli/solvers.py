"""``bfn solvers``."""

from typing import Any

from bfn.cli.common import AsJson, table, tell

__all__ = ["solvers"]


def solvers(json: AsJson = False) -> None:
    """List the solvers: for which data, of which order, and what they do.

    Example: bfn solvers
    """
    from bfn.flows import ContinuousFlow, DiscreteFlow
    from bfn.solvers import SOLVERS

    values: list[dict[str, Any]] = []
    rows = []
    for name, solver in SOLVERS.items():
        own = [solver.resolve(flow, 10) for flow in (ContinuousFlow(), DiscreteFlow(2)) if flow.kind in solver.kinds]
        orders, dial = [each.order for each in own], any(each.has_dial for each in own)
        values.append({
            "name": name, "kinds": list(solver.kinds), "order": dict(zip(solver.kinds, orders, strict=True)),
            "stochastic": solver.stochastic, "dial": dial, "summary": solver.summary,
        })  # fmt: skip
        kind = "SDE, --g" if dial else "SDE" if solver.stochastic else "ODE"
        rows.append((name, " ".join(solver.kinds), "/".join(map(str, dict.fromkeys(orders))), kind, solver.summary))
    note = "\nauto takes the model's own table where bfn tune has made one for that number of calls"
    tell(values, [table(("solver", "data", "order", "kind", "what it does"), rows), note], json)
