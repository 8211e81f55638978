"""``bfn solvers``."""

from typing import Any

from bfn.cli.common import AsJson, print_json, table

__all__ = ["solvers"]


def solvers(json: AsJson = False) -> None:
    """List the solvers: for which data, of which order, and what they do.

    Example: bfn solvers
    """
    from bfn.flows import ContinuousFlow, DiscreteFlow
    from bfn.solvers import SOLVERS

    flows = (ContinuousFlow(), DiscreteFlow(2))
    rows: list[dict[str, Any]] = []
    for name, solver in SOLVERS.items():
        resolved = {flow.kind: solver.resolve(flow, 10) for flow in flows if flow.kind in solver.kinds}
        rows.append(
            {
                "name": name,
                "kinds": list(solver.kinds),
                "order": {kind: own.order for kind, own in resolved.items()},
                "stochastic": solver.stochastic,
                "dial": any(own.has_dial for own in resolved.values()),
                "summary": solver.summary,
            }
        )
    if json:
        return print_json(rows)
    cells = [
        (
            row["name"],
            " ".join(row["kinds"]),
            "/".join(map(str, dict.fromkeys(row["order"].values()))),
            "SDE, --g" if row["dial"] else "SDE" if row["stochastic"] else "ODE",
            row["summary"],
        )
        for row in rows
    ]
    print(table(("solver", "data", "order", "kind", "what it does"), cells))
    print("\nauto takes the model's own table where bfn tune has made one for that number of calls")
    return None
