"""Molecules for ``bfn sample``: a sheet of drawings, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.batched_sampling import BatchedSamples
    from bfn.model import BFN

__all__ = ["tell_molecules"]


def tell_molecules(path: Path, model: BFN, drawn: BatchedSamples) -> tuple[list[Path], list[str], dict[str, Any]]:
    """Draw the valid ones beside their strings; files, lines for people, values for programs.

    Without RDKit the strings are all there is, and one line says what to install.
    """
    from bfn.quality.molecule_report import report_molecules
    from bfn.viz import molecule_sheet, write_picture

    try:
        report = report_molecules(model, drawn.x, drawn.present, drawn.conditions)
        files = []
        if report.molecules.valid:
            captions = [""] * len(report.molecules.valid)
            for own in report.properties:
                captions = [f"{own.name} {value:.3f}" for value in own.estimated]
            sheet = molecule_sheet(report.molecules.valid, captions)
            files.append(write_picture(path.with_suffix(".png"), sheet))
    except ImportError as error:
        return [], [f"not drawn, not judged: {error}"], {"molecules": None}
    return files, report.lines(), {"molecules": report.asdict()}
