"""``bfn info``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bfn.cli.common import AsJson, Counts, ModelName, Network, check_positive, load, tell
from bfn.cli.models import describe_data, figure, quality, summary

if TYPE_CHECKING:
    from bfn.conditions import Condition
    from bfn.core.solver import Plan
    from bfn.info import ModelInfo

__all__ = ["info"]


def info(
    model: ModelName,
    nfe: Counts = (5, 10, 20, 50),
    repair: bool = False,
    network: Network = None,
    json: AsJson = False,
) -> None:
    """Tell about a model: its data, network and card, and what the solver "auto" runs on it.

    Example: bfn info mnist --nfe 10 50

    Example: bfn info runs/mine --repair

    Args:
        nfe: numbers of network calls to tell the plan of "auto" for.
        repair: first make a damaged model whole, its config from the copy in its weights, its weights from the run's
            checkpoints.
    """
    from bfn import storage
    from bfn.solvers import plan
    from bfn.storage import describe

    if repair:
        done = storage.repair(model, sorted(storage.locate(model).glob("checkpoints/step-*"), reverse=True))
        if not json:
            tell(None, [done], json)
    check_positive(nfe=min(nfe, default=None))
    source = load(model, network=network)
    config = describe(source)
    plans = [plan(source, "auto", calls) for calls in nfe]
    n_parameters = sum(weight.numel() for weight in source.parameters())
    facts = {
        "model": model,
        "data": describe_data(config, source.info),
        **dict(_facts(source.info)),
        "flow": _flow(config["flow"]),
        "head": _part(config["head"]),
        "network": f"{_part(config['network'] or {'name': 'a network of its own'})}; {n_parameters:,} parameters",
        "measured": "\n".join(quality(source.info)) or "not measured",
        **{k: figure(v) for k, v in source.info.card.items() if k != "quality" and isinstance(v, str | int | float)},
    }
    width = 2 + max(map(len, facts))
    lines = [f"{name:{width}}{value.replace(chr(10), chr(10) + ' ' * width)}" for name, value in facts.items()]
    lines += ["\nwhat the solver auto runs", *(f"  {planned}" for planned in plans)]
    lines.append("measured on the bundled models: docs/results/dial.md, docs/solvers.md")
    values = {"name": model, "n_parameters": n_parameters, **summary(config, source.info)}
    tell({**values, "auto": [_values(planned) for planned in plans]}, lines, json)


def _facts(info: "ModelInfo") -> Iterator[tuple[str, str]]:
    """What is known of the data, as far as it is."""
    if info.classes is not None:
        shares = zip(info.classes.names, info.classes.shares, strict=True)
        yield "classes", ", ".join(f"{name} ({100 * share:.3g} %)" for name, share in shares)
    if info.alphabet is not None:
        yield "alphabet", f"{info.alphabet!r}, {len(info.alphabet)} symbols"
    if info.tokenizer is not None:
        some, n = info.tokenizer.pieces[:12], len(info.tokenizer)
        yield "tokens", f"{n}: {', '.join(map(repr, some))}{', ...' if n > len(some) else ''}"
    if info.value_range is not None:
        yield "range", "{:g} to {:g}, predictions are clipped to it".format(*info.value_range)
    for name, one in info.conditions.items():
        yield f"condition {name}", _condition(one)
    if info.lengths is not None:
        lengths = info.lengths.shares
        mean = sum(length * share for length, share in enumerate(lengths))
        first = next(length for length, share in enumerate(lengths) if share)
        yield "lengths", f"{first} to {info.lengths.longest}, {mean:.3g} on average"
    for name, scaling in info.scaling.items():
        units = [f"{shift:.4g} +- {scale:.4g}" for shift, scale in zip(scaling.shift, scaling.scale, strict=True)]
        yield f"scale {name}".strip(), f"{', '.join(units[:6])}{', ...' if len(units) > 6 else ''}"
    yield "tables", f"tuned for {', '.join(map(str, sorted(info.tables)))} calls" if info.tables else "none tuned"
    if info.spread is not None:
        yield "spread", f"{info.spread.std:.3g} a number, {info.spread.widest:.3g} along the widest direction"
    anchors = () if info.calibration is None else info.calibration.anchors
    yield "calibration", f"at {', '.join(str(anchor.calls) for anchor in anchors)} calls" if anchors else "none"
    yield "error curve", "not measured" if info.error_curve is None else f"at {len(info.error_curve.t)} times"


def _condition(condition: "Condition") -> str:
    if condition.n_classes:
        return ", ".join(condition.names) or f"{condition.n_classes} classes"
    shape = f"numbers of shape {condition.shape}" if condition.shape else "a number"
    return shape if condition.low is None else f"{shape}, {condition.low:g} to {condition.high:g}"


def _flow(config: Mapping[str, Any]) -> str:
    """The schedule of a flow, or of each of its parts."""
    if "flows" in config:
        return "\n".join(f"{name}: {_flow(own)}" for name, own in config["flows"].items())
    return f"{_part(config['schedule'])} schedule"


def _values(planned: "Plan") -> dict[str, Any]:
    solver, times = planned.solver, planned.table.times
    chosen = {} if solver is None else {"order": solver.order, "g": solver.g, "grid": str(solver.grid)}
    name = "tuned" if solver is None else solver.name
    return {"nfe": len(times), "plan": str(planned), "solver": name, **chosen, "first": times[0], "last": times[-1]}


def _part(values: Mapping[str, Any]) -> str:
    """A part of a config: its name, then its parameters."""
    rest = ", ".join(f"{key} {figure(value)}" for key, value in values.items() if key != "name")
    return f"{values.get('name', '')} {rest}".strip()
