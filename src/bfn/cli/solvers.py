"""``bfn solvers``."""

from bfn.cli.common import AsJson, print_json, table


def solvers(json: AsJson = False) -> None:
    """List the solvers: for which data, of which order, and what they do.

    Example: bfn solvers
    """
    from bfn.flows import ContinuousFlow, DiscreteFlow
    from bfn.solvers import SOLVERS

    flows = (ContinuousFlow(), DiscreteFlow(2))
    resolved = {
        name: {flow.kind: solver.resolve(flow, 10) for flow in flows if flow.kind in solver.kinds}
        for name, solver in SOLVERS.items()
    }
    orders = {name: {kind: own.order for kind, own in by_kind.items()} for name, by_kind in resolved.items()}
    dials = {name: any(own.has_dial for own in by_kind.values()) for name, by_kind in resolved.items()}
    rows = [
        {
            "name": solver.name,
            "kinds": list(solver.kinds),
            "order": orders[solver.name],
            "stochastic": solver.stochastic,
            "dial": dials[solver.name],
            "summary": solver.summary,
        }
        for solver in SOLVERS.values()
    ]
    if json:
        return print_json(rows)
    cells: list[tuple[object, ...]] = [
        (
            solver.name,
            " ".join(solver.kinds),
            "/".join(map(str, dict.fromkeys(orders[solver.name].values()))),
            "SDE, --g" if dials[solver.name] else "SDE" if solver.stochastic else "ODE",
            solver.summary,
        )
        for solver in SOLVERS.values()
    ]
    cells.append(
        ("tuned", "continuous discrete", "own", "own", "the model's own table at that nfe, by bfn tune; auto takes it")
    )
    print(table(("solver", "data", "order", "kind", "what it does"), cells))
    return None
