"""Table 2: bits per character of the n-step bound, and spelling accuracy, at the same numbers of steps and calls."""

from __future__ import annotations

import torch
from torch import Tensor

from bfn.estimate import Estimate
from bfn.likelihood import bits_estimate, held_out_bits
from bfn.model import Model
from bfn.paper import printed
from bfn.paper.judged_model import JudgedModel
from bfn.paper.measurements import main_measure, measure_all, over_calls, samplers_named
from bfn.paper.report import Options, Section
from bfn.quality import markdown_table

__all__ = ["bits", "efficiency"]

REPEATS = 4
"""The n-step loss of a text is estimated from so many of its steps."""
TEXTS = 200
"""Held-out texts that the bound is measured on, at most."""


def bits(model: Model, x: Tensor, n_steps: int | None, seed: int) -> dict[str, Estimate]:
    """Bits a character of texts x, (n, length), in parts: by the n-step loss, or the continuous-time one."""
    generator = torch.Generator(model.device).manual_seed(seed)
    return held_out_bits(model, x, n_steps=n_steps, repeats=REPEATS, generator=generator)


def efficiency(judged: JudgedModel, options: Options) -> Section:
    """The bound at n steps, and what samplers give at n calls."""
    accuracy, likelihood = printed.printed_table("efficiency-sa"), printed.printed_table("efficiency-bpc")
    calls = options.nfe or (20, 25, 50)
    wanted = over_calls(samplers_named(accuracy.solvers), calls)
    measured, notes = measure_all(judged, wanted, options, options.seed, options.n or min(judged.n, 250))
    main = main_measure(judged.judge, measured)
    real = judged.judge.held_out
    n_texts = min(options.n or TEXTS, TEXTS, len(real))
    held_out = real[torch.arange(n_texts) * len(real) // n_texts]
    found = {n: bits(judged.model, held_out, n, options.seed) for n in (*calls, None)}
    rows = []
    for nfe in calls:
        in_paper = likelihood.value("bfn", nfe=nfe)
        rows.append([f"{nfe}", "", str(found[nfe]["total"]), f"{in_paper:g}" if in_paper else "", "", ""])
        for each in (each for each in measured if each.nfe == nfe):
            in_paper = accuracy.value(each.sampler.solver, nfe=nfe)
            shown = main.show(each.record.measures[main.key])
            rows.append(["", f"`{each.label}`", "", "", shown, f"{in_paper:g}" if in_paper else ""])
    sizes = ", ".join(f"{n} at {nfe} calls" for nfe, n in {each.nfe: each.record.n for each in measured}.items())
    lines = [
        "Bits a character: n-step loss plus reconstruction, with 95 % intervals, on held-out text; the same for all "
        "samplers, as it belongs to the model. The paper's figures for D3PM (1.52 at 50 steps) and OA-ARDM (1.52 at "
        "20) are of other models.",
        "",
        *markdown_table(["steps", "sampler", "bits a character", "paper", main.label, "paper, %"], rows),
        "",
        f"In the limit of many steps (the continuous-time bound) the model has {found[None]['total']} bits a "
        f"character, on {len(held_out)} texts. Samples for {main.label}: {sizes}.",
        *notes,
    ]
    if judged.exact is not None:
        nats = -judged.exact.log_prob(held_out.to(judged.exact.device)) / held_out.shape[1]
        truth = bits_estimate(nats)
        lines += ["", f"Its exact log-probability of the same texts is {truth} bits a character."]
    lines += ["", *(f"On the paper's table: {remark.text}." for remark in likelihood.remarks)]
    results = {
        "bits": {str(n or "continuous"): _plain(parts) for n, parts in found.items()},
        "cells": [each.record.asdict() for each in measured],
    }
    return Section(judged.name, judged.title, "\n".join(lines), results)


def _plain(parts: dict[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {name: estimate.asdict() for name, estimate in parts.items()}
