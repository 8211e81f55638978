"""``bfn info``."""

from dataclasses import asdict
from typing import Any

from bfn.cli.common import AsJson, ModelName, load, print_json, table
from bfn.cli.models import describe_data, figure, quality_line, summary


def info(model: ModelName, nfe: tuple[int, ...] = (5, 10, 20, 50, 100), json: AsJson = False) -> None:
    """Tell about a model: its card, its network, and what the solver "auto" does with it.

    Example: bfn info mnist --nfe 10 50

    Args:
        nfe: numbers of network calls to tell the choice of "auto" for.
    """
    loaded = load(model)
    choices = [_choice(loaded.model, calls) for calls in nfe]
    weights = list(loaded.model.parameters())
    n_parameters = sum(weight.numel() for weight in weights)
    if json:
        return print_json({"name": model, "n_parameters": n_parameters, **summary(loaded.config), "auto": choices})
    config = loaded.config
    network = config["network"] or {"name": "a network of its own"}
    print(f"model      {model}")
    print(f"data       {describe_data(config)}")
    print(f"flow       {_part(config['flow']['schedule'])} schedule")
    print(f"head       {_part(config['head'])}")
    print(f"network    {network['name']}, {n_parameters:,} parameters in {len(weights)} tensors")
    print(f"           {_part({k: v for k, v in network.items() if k != 'name'})}")
    print(f"measured   {quality_line(config)}")
    for name, value in (config.get("card") or {}).items():
        if name != "quality" and isinstance(value, str | int | float):
            print(f"{name:10} {figure(value)}")
    print("\nwhat the solver auto picks")
    keys = ("nfe", "solver", "order", "g", "quiet", "coordinate", "grid", "first", "last")
    print(table(keys, [[figure(choice[key]) for key in keys] for choice in choices]))
    print("measured on the bundled models: docs/results/dial.md, docs/solvers.md")
    return None


def _choice(model: Any, nfe: int) -> dict[str, Any]:
    from bfn import solvers
    from bfn.sampling import make_table, tuned_table

    times = make_table(model.flow, "auto", nfe, starts_at_zero=model.starts_at_zero, tables=model.tables).times
    settings = ("order", "g", "quiet", "coordinate", "grid")
    if tuned_table(model.tables, "auto", nfe) is not None:
        picked = {"solver": "tuned", **dict.fromkeys(settings, "own")}
    else:
        values = asdict(solvers.get("auto", model.flow.kind).resolve(model.flow, nfe))
        picked = {"solver": values["name"], **{key: values.get(key, "-") for key in settings}}
    return {"nfe": nfe, **picked, "first": times[0], "last": times[-1]}


def _part(values: dict[str, Any]) -> str:
    """A part of a config: its name, then its parameters."""
    rest = ", ".join(f"{key} {figure(value)}" for key, value in values.items() if key != "name")
    return f"{values.get('name', '')} {rest}".strip()
