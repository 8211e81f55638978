"""``bfn distill``."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from bfn.cli.common import DIRECTORY, NAME, AsJson, Device, ModelName, Seed, check_positive, load, shown, tell

__all__ = ["distill"]


def distill(
    model: ModelName,
    out: Annotated[Path, DIRECTORY],
    steps: int = 2000,
    paths: int = 16_000,
    calls: int = 4,
    solver: Annotated[str, NAME] = "fast-ode",
    nfe: int = 16,
    grid: Annotated[str | None, NAME] = None,
    g: Annotated[float | None, arg(metavar="NUMBER")] = None,
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    temperature: Annotated[float | None, arg(metavar="NUMBER")] = None,
    match: Annotated[float | None, arg(metavar="NUMBER")] = None,
    batch: int = 128,
    lr: float = 1e-3,
    start: Annotated[str | None, arg(metavar="MODEL")] = None,
    resume: bool = False,
    seed: Seed = 0,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Train a copy of a model to sample in one to four network calls.

    The model's own paths, from noise to data without further noise, are the data: the copy learns where each ends.
    Ctrl-C writes a checkpoint, and --resume goes on from there.

    Example: bfn distill digits --out one-call

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64 --resume

    Args:
        out: directory of the run: paths, checkpoints, log, and in the end the distilled model.
        steps: of training.
        paths: of the model, to learn from; 500 more are kept back to measure with.
        calls: the distilled model gets tables of 1 to so many calls.
        solver: that draws the paths, without noise.
        nfe: its network calls a path.
        grid: its grid, by name as bfn sample takes it.
        g: its stochasticity dial, for solvers that have one: 0.
        guidance: scale by which the classes count in the paths; the distilled model needs no guidance of its own.
        temperature: the logits of classes are divided by it in the paths.
        match: how much it counts that samples of one call are as likely under noise as the teacher's; 0 for the paths
            alone, in half the time a step. Left out, 1 for images and 0 for other data.
        batch: samples a step.
        lr: learning rate at its highest.
        start: model to begin with, an earlier student for one; MODEL itself if left out.
        resume: go on with the paths and from the checkpoint in --out.
    """
    import inspect
    import shlex

    from bfn import distilling
    from bfn.training import read_log

    check_positive(steps=steps, paths=paths, calls=calls, nfe=nfe, batch=batch)
    given: dict[str, Any] = {"grid": grid, "g": g, "guidance": guidance, "temperature": temperature}
    teacher = {"solver": solver, "nfe": nfe, **{key: value for key, value in given.items() if value is not None}}
    more: dict[str, Any] = {
        "steps": steps, "paths": paths, "calls": calls, "match": match, "batch": batch, "seed": seed,
    }  # fmt: skip
    said = {**teacher, **more, "start": start, "device": device}

    def again(rate: float | None) -> str:
        """The command that goes on, with what is not as it is where nothing is said."""
        usual = {name: about.default for name, about in inspect.signature(distill).parameters.items()}
        changed = {name: value for name, value in {**said, "lr": rate or lr}.items() if value != usual[name]}
        options = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
        return shlex.join(["bfn", "distill", model, "--out", str(out), *options, "--resume"])

    first = None if start is None else load(start, device)
    student = distilling.distill(
        load(model, device), teacher=teacher, student=first, lr=lr, run=out, resume=resume, again=again,
        progress=shown(), **more,
    )  # fmt: skip
    error = next(entry for entry in reversed(read_log(out)) if entry["kind"] == "eval")
    figures = {key: error[key] for key in ("end_error", "end_error_low", "end_error_high")}
    noised = {calls: [round(t, 4) for t in table.times] for calls, table in student.info.tables.items()}
    line = (
        f"{model} distilled in {steps} steps: one call ends {error['end_error']:.4g} "
        f"[{error['end_error_low']:.4g}, {error['end_error_high']:.4g}] from the teacher's end, a dimension; "
        f"stored in {out} with tables of {', '.join(map(str, noised))} calls"
    )
    tell({"model": model, "out": str(out), "steps": steps, **figures, "times": noised}, [line], json)
