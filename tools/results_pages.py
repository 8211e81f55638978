"""Make tables of results from the cards of the bundled models, or from files of ``bfn compare --json``.

    python tools/results_pages.py cards                                  # the table of docs/results/README.md
    python tools/results_pages.py zoo text8=a.json,b.json mnist=c.json   # prints tables

``cards`` replaces the table between the marks of the page; the text around it is written by hand. ``zoo`` prints tables
for the pages on images and text.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bfn._utils.files import atomic_write
from bfn.quality import markdown_table
from bfn.storage import models as storage

PAGE = Path(__file__).parents[1] / "docs" / "results" / "README.md"
MARKS = "<!-- figures -->\n", "<!-- end of figures -->\n"
MEASURES = {
    "text8": "correctly spelled words, %",
    "text8-plain": "correctly spelled words, %",
    "mnist": "Frechet distance, judge `mnist`",
    "mnist-binary": "Frechet distance, judge `mnist`",
    "digits": "Frechet distance, judge `pixels`",
    "qm9": "Frechet ChemNet distance",
}
"""Main measure of each model."""

ABOUT = ("solver", "nfe", "samples", "t_start")
SHOWN = ("spelling", "ngram_divergence", "frechet")
"""Measures that are shown in tables of solvers."""


def card_table() -> list[str]:
    """Return the main measure on the cards of the bundled models, for `auto`, a paper's solver and the original."""
    rows = []
    for name, measure in MEASURES.items():
        measured = storage.read_info(name).card["measured"]
        named = dict.fromkeys(row["solver"] for row in measured)
        order = {"auto": 0, "bfn": 2}
        for solver in sorted(named, key=lambda solver: order.get(solver, 1)):
            own = {row["nfe"]: row for row in measured if row["solver"] == solver}
            figures, real = [], ""
            for nfe in (5, 10):
                main = next(value for key, value in own[nfe].items() if key not in ABOUT).replace(" %", "")
                figure, _, real = main.removesuffix(")").partition(" (real data ")
                figures.append("too few valid" if figure == "inf" else figure)
            first = [f"`{name}`", measure] if solver == "auto" else ["", ""]
            rows.append([*first, f"{own[5]['samples']}", f"`{solver}`", *figures, real])
    return markdown_table(["model", "measure", "samples", "sampler", "5 calls", "10 calls", "real data"], rows)


def _sampler(solver: str, t_start: float | None = None, grid: str | None = None) -> str:
    start, on = "" if t_start is None else f" from t = {t_start:g}", "" if grid is None else f", grid `{grid}`"
    return f"`{solver}`{start}{on}"


def zoo_section(name: str, comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with samplers down, the best at the fewest calls first, and measures by calls across."""
    first = comparisons[0]
    measures = [of for of in first["measures"] if of["key"] in SHOWN]
    records = [record for comparison in comparisons for record in comparison["records"]]
    calls = sorted({record["setting"]["nfe"] for record in records})
    found: dict[str, dict[int, Mapping[str, Mapping[str, float]]]] = {}
    for record in records:
        setting = record["setting"]
        sampler = _sampler(setting["solver"], setting.get("t_start"), setting.get("grid"))
        found.setdefault(sampler, {})[setting["nfe"]] = record["measures"]
    main, sign = measures[0]["key"], -1 if measures[0]["better"] == "high" else 1
    order = sorted(found, key=lambda sampler: sign * found[sampler][calls[0]][main]["value"])
    columns = [(nfe, of) for nfe in calls for of in measures]
    header = [f"{of['label']}{of['unit'] and ', ' + of['unit']}, {nfe} calls" for nfe, of in columns]
    body = [[sampler, *(_figure(found[sampler].get(nfe, {}), of) for nfe, of in columns)] for sampler in order]
    real = [_figure(first["real"]["measures"], of) for of in measures]
    body.append(["real data", *real, *[""] * (len(columns) - len(measures))])
    return [f"### {name}, {records[0]['n']} samples", "", *markdown_table(["sampler", *header], body), ""]


def _figure(figures: Mapping[str, Mapping[str, float]], of: Mapping[str, Any]) -> str:
    if of["key"] not in figures:
        return ""
    value, low, high = (figures[of["key"]][name] * of["scale"] for name in ("value", "low", "high"))
    digits = 1 if of["unit"] == "%" else 3 if of["unit"] == "bits" else 2
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def put(lines: Sequence[str], page: Path) -> None:
    """Replace the lines of a page between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise SystemExit(f"{page}: expected a line {MARKS[0].strip()} and, below it, {MARKS[1].strip()}")
    atomic_write(page, "\n".join([f"{before}{MARKS[0]}", *lines, f"{MARKS[1]}{after}"]))


def main() -> None:
    """Write or print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=["cards", "zoo"])
    parser.add_argument("comparisons", nargs="*", metavar="MODEL=FILE[,FILE ...]", help="for zoo")
    options = parser.parse_args()
    if options.page == "cards":
        put([*card_table(), ""], PAGE)
        return
    for word in options.comparisons:
        name, _, files = word.partition("=")
        print("\n".join(zoo_section(name, [json.loads(Path(file).read_text()) for file in files.split(",")])))


if __name__ == "__main__":
    main()
