"""Table 2: bits per character of the n-step bound, and spelling accuracy, at the same numbers of steps and calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bfn import quality as metrics
from bfn.model import Model
from bfn.paper import paper
from bfn.paper.cells import Cell, main_measure, plain, run_cells
from bfn.paper.paper import Column
from bfn.paper.reports import Options, Section, markdown_table
from bfn.paper.subjects import Subject

REPEATS = 4
"""The n-step loss of a text is estimated from so many of its steps."""
TEXTS = 200
"""Held-out texts that the bound is measured on, at most."""


@torch.no_grad()
def bits(model: Model, x: Tensor, n_steps: int | None, seed: int, batch: int = 100) -> metrics.BitsReport:
    """Bits a character of texts x, (n, length): the n-step bound, or the continuous-time one, with reconstruction."""
    generator = torch.Generator(model.device).manual_seed(seed)
    bounds, ends = [], []
    for part in torch.split(x.to(model.device), batch):
        some = [model.loss(part, n_steps=n_steps, generator=generator) for _ in range(REPEATS)]
        bounds.append(torch.stack(some).mean(0).cpu())
        ends.append(model.reconstruction_loss(part, generator=generator).cpu())
    return metrics.bits_report(torch.cat(bounds), torch.cat(ends))


def efficiency(subject: Subject, options: Options) -> Section:
    """The bound at n steps, and what samplers give at n calls."""
    accuracy, likelihood = paper.table("efficiency-sa"), paper.table("efficiency-bpc")
    calls = options.nfe or (20, 25, 50)
    wanted = [(row, Column(nfe), row.at(nfe)) for row in plain(accuracy.solvers) for nfe in calls]
    cells, notes = run_cells(subject, wanted, options, options.seed, options.n or min(subject.n, 250))
    main = main_measure(subject.judge, cells)
    real = subject.judge.held_out
    n_texts = min(options.n or TEXTS, TEXTS, len(real))
    held_out = real[torch.arange(n_texts) * len(real) // n_texts]
    reports = {n: bits(subject.model, held_out, n, options.seed) for n in (*calls, None)}
    rows = []
    for nfe in calls:
        total = reports[nfe].total
        printed = likelihood.value("bfn", nfe=nfe)
        rows.append([f"{nfe}", "", str(total), f"{printed:g}" if printed else "", "", ""])
        for cell in cells:
            if cell.record.setting.nfe == nfe:
                on_paper = accuracy.value(cell.row.name, nfe=nfe)
                shown = main.show(cell.record.measures[main.key])
                rows.append(["", f"`{cell.row.label}`", "", "", shown, f"{on_paper:g}" if on_paper else ""])
    limit = reports[None].total
    lines = [
        "Bits a character: n-step bound plus reconstruction, with standard errors, on held-out text; the same for all "
        "samplers, as it belongs to the model. The paper's figures for D3PM (1.52 at 50 steps) and OA-ARDM (1.52 at "
        "20) are of other models.",
        "",
        *markdown_table(["steps", "sampler", "bits a character", "paper", main.label, "paper, %"], rows),
        "",
        f"In the limit of many steps (the continuous-time bound) the model has {limit} bits a character, on "
        f"{len(held_out)} texts. Samples for {main.label}: {_sizes(cells)}.",
        *notes,
    ]
    if subject.exact is not None:
        nats = -subject.exact.log_prob(held_out.to(subject.exact.device)).double().cpu() / held_out.shape[1]
        truth = metrics.bits_report(nats).bound
        lines += ["", f"Its exact log-probability of the same texts is {truth} bits a character."]
    remarks = [remark.text for remark in likelihood.remarks]
    lines += ["", *(f"On the paper's table: {remark}." for remark in remarks)]
    results = {
        "bits": {str(n or "continuous"): dataclasses.asdict(report) for n, report in reports.items()},
        "cells": [cell.record.asdict() for cell in cells],
    }
    return Section(subject.name, subject.title, "\n".join(lines), results)


def _sizes(cells: Sequence[Cell]) -> str:
    counts = {cell.record.setting.nfe: cell.record.n for cell in cells}
    return ", ".join(f"{n} at {nfe} calls" for nfe, n in counts.items())
