"""Put figures into the pages docs/results/README.md and docs/results/zoo.md, between the marks that they have.

    python tools/results_pages.py cards                                  # from the cards of the bundled models
    python tools/results_pages.py zoo text8=a.json,b.json mnist=c.json   # from what `bfn compare --json` wrote

What is written around the marks, the reading of the figures above all, is by hand and stays: look it through after.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bfn._utils.files import atomic_write
from bfn.quality.comparison import markdown_table
from bfn.storage import models as storage

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MARKS = "<!-- figures -->\n", "<!-- end of figures -->\n"
MODELS = ("text8", "text8-plain", "mnist", "mnist-binary", "digits")
BITS = {
    "bound": "continuous-time bound", "transmission": "continuous-time bound", "reconstruction": "reconstruction",
    "total": "in sum",
}  # fmt: skip
SHOWN = ("spelling", "ngram_divergence", "frechet")
"""Measures that tell samplers apart."""


def card_section(name: str) -> list[str]:
    """What the card of a bundled model has of its training and its quality."""
    info = storage.read_info(name)
    card, unit = info.card, "character" if info.alphabet else "dimension"
    about = ("solver", "nfe", "samples", "t_start")
    rows = card["measured"]
    measures = [key for key in rows[0] if key not in about]
    body = [[f"{row['nfe']}", _sampler(row["solver"], row.get("t_start")), *(row[of] for of in measures)]
            for row in rows]  # fmt: skip
    return [
        f"## {name}",
        "",
        f"{card['parameters']:,} parameters, {card['step']} steps of {card['settings']['batch']}. Held-out data: "
        f"{_bits(card['held-out bits a dimension'], unit)}.",
        *(["", card["note"]] if "note" in card else []),
        "",
        *markdown_table(["calls", "sampler", *measures], body),
        "",
    ]


def _bits(bits: Mapping[str, float], unit: str) -> str:
    """The parts of held-out bits: older runs logged standard errors, later ones 95 % intervals."""
    said = []
    for part, word in BITS.items():
        key = f"{part}_bits"
        if f"{key}_error" in bits:
            said.append(f"{word} {bits[key]:.3f} ± {bits[f'{key}_error']:.3f}")
        elif key in bits:
            said.append(f"{word} {bits[key]:.3f} [{bits[f'{key}_low']:.3f}, {bits[f'{key}_high']:.3f}]")
    return f"{', '.join(said)} bits a {unit}" + (" (± standard error)" if "±" in said[0] else "")


def _sampler(solver: str, t_start: float | None = None, grid: str | None = None) -> str:
    start, on = "" if t_start is None else f" from t = {t_start:g}", "" if grid is None else f", grid `{grid}`"
    return f"`{solver}`{start}{on}"


def zoo_section(name: str, comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Samplers down, the best first by the first measure at the fewest calls; measures by calls across."""
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
    return [f"## {name}, {records[0]['n']} samples", "", *markdown_table(["sampler", *header], body), ""]


def _figure(figures: Mapping[str, Mapping[str, float]], of: Mapping[str, Any]) -> str:
    if of["key"] not in figures:
        return ""
    value, low, high = (figures[of["key"]][name] * of["scale"] for name in ("value", "low", "high"))
    digits = 1 if of["unit"] == "%" else 3 if of["unit"] == "bits" else 2
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def put(lines: Sequence[str], page: Path) -> None:
    """Replace what a page has between the marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise SystemExit(f"{page}: expected a line {MARKS[0].strip()} and, below it, {MARKS[1].strip()}")
    atomic_write(page, "\n".join([f"{before}{MARKS[0]}", *lines, f"{MARKS[1]}{after}"]))


def main() -> None:
    """Write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=["cards", "zoo"])
    parser.add_argument("comparisons", nargs="*", metavar="MODEL=FILE[,FILE ...]", help="for zoo")
    options = parser.parse_args()
    if options.page == "cards":
        put([line for name in MODELS for line in card_section(name)], RESULTS / "README.md")
        return
    lines: list[str] = []
    for given in options.comparisons:
        name, _, files = given.partition("=")
        lines += zoo_section(name, [json.loads(Path(file).read_text()) for file in files.split(",")])
    put(lines, RESULTS / "zoo.md")


if __name__ == "__main__":
    main()
