"""Which files a sample, a training step and a comparison pass through: traced, and written into docs/architecture.md.

    python tools/trace_walks.py            # rewrites the lists between the markers of the page
    python tools/trace_walks.py --check    # exit code 1 if the page is not what the trace gives
    python tools/trace_walks.py --calls    # prints the calls from file to file, for whoever changes the house

The layers of ``.importlinter`` are written into the page as well.

A file is *entered* when a function of it is called from another file of the package. The list has every file that is
entered, in the order of its first entry. Functions that a file hands to another, as callbacks, are part of the visit
from which they were handed.

A call is a *stage* of the walk if it goes on into further files, and a *question* if it does not (kappa of a flow, s
of a schedule, a check of a value): objects are asked wherever they are at hand. A file is entered *twice* if two stages
of it are apart: it was entered, left for another stage, and entered again, or entered while it was still waiting for
the file that it called. The loop over network calls is left out of this: each call passes through the same files, by
its nature.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import contextlib
import importlib
import inspect
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import bfn

PACKAGE = Path(bfn.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
LAYERS = Path(__file__).parents[1] / ".importlinter"
LOOP = ("loop.py", "walk")
"""The loop over network calls."""


@dataclass(eq=False)
class Visit:
    """A call from one file into another: the function, and the calls into further files that it made."""

    file: str
    function: str
    parent: Visit | None = None
    in_loop: bool = False
    calls: list[Visit] = field(default_factory=list)

    @property
    def is_stage(self) -> bool:
        """Whether it goes on into further files."""
        return any(call.file != self.file for call in self.calls)

    @property
    def caller(self) -> str:
        """The file that called."""
        return "" if self.parent is None else self.parent.file

    @property
    def depth(self) -> int:
        """How many files are waiting for it."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def below(self) -> Iterator[Visit]:
        """All visits under this one, in order."""
        for call in self.calls:
            yield call
            yield from call.below()


def trace(walk: Callable[[], Any]) -> Visit:
    """The calls from file to file while ``walk`` runs, as the first in its process; imports are left out."""
    importlib.import_module("bfn.core.solver")._kept_table.cache_clear()
    root = Visit("", "")
    stack = [(root, "", False)]  # the visit, the file that is read, whether within the loop
    suspended: dict[int, FrameType] = {}
    importing = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_name == "<module>":
            importing += 1 if event == "call" else -1
        if importing or code.co_name == "<module>":
            return
        if event == "return":
            stack.pop()
            return
        visit, reading, in_loop = stack[-1]
        file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        resumed = id(frame) in suspended  # a generator, of a context manager for instance
        if code.co_flags & inspect.CO_GENERATOR:
            suspended[id(frame)] = frame
        handed_over = "<locals>" in code.co_qualname or resumed
        if file != reading and not handed_over:
            visit = Visit(file, code.co_qualname, visit, in_loop)
            stack[-1][0].calls.append(visit)
        stack.append((visit, file, in_loop or (file, code.co_qualname) == LOOP))

    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return root


def entered_twice(root: Visit) -> dict[str, list[Visit]]:
    """Files with stages that are apart, and these stages."""
    found: dict[str, list[Visit]] = {}
    for visit in root.below():
        if visit.is_stage and not visit.in_loop:
            before = found.setdefault(visit.file, [])
            if not before or not _follows(before[-1], visit):
                before.append(visit)
    return {file: visits for file, visits in found.items() if len(visits) > 1}


def _follows(earlier: Visit, later: Visit) -> bool:
    """Whether one caller made both, with no stage of another file between: then they are one."""
    if earlier.parent is not later.parent or earlier.parent is None:
        return False
    siblings = earlier.parent.calls
    between = siblings[siblings.index(earlier) + 1 : siblings.index(later)]
    return not any(visit.is_stage and visit.file != later.file for visit in between)


def summary(file: str) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".").replace("``", "`").replace("|", "\\|")


def listing(root: Visit) -> str:
    """The files in the order of their first entry, by what they were entered, and what they say of themselves."""
    visits = list(root.below())
    lines = []
    first: dict[str, Visit] = {}
    for visit in visits:
        first.setdefault(visit.file, visit)
    for number, (file, visit) in enumerate(first.items(), 1):
        by = f"`{visit.function.removesuffix('.__init__')}`" + (", at each call" if visit.in_loop else "")
        lines.append(f"{number}. `{file}` by {by}. *{summary(file)}*")
    twice = entered_twice(root)
    lines += ["", f"{len(first)} files, " + ("of which are entered twice:\n" if twice else "none entered twice.")]
    for file, stages in twice.items():
        lines.append(f"- `{file}`: by " + ", then ".join(f"`{v.function}` from `{v.caller}`" for v in stages))
    return "\n".join(lines)


def layers() -> str:
    """The layers, topmost first, with what each module says of itself."""
    contract = configparser.ConfigParser()
    contract.read(LAYERS)
    lines = ["| layer | holds |", "|---|---|"]
    for layer in contract["importlinter:contract:layers"]["layers"].split("\n"):
        names = [name for name in re.split(r"[ |:()]+", layer) if name and not name.startswith("__")]
        files = [f"{name}/__init__.py" if (PACKAGE / name).is_dir() else f"{name}.py" for name in names]
        shown = (f"`{file.replace('__init__.py', '')}` {summary(file)}" for file in files)
        if names:
            lines.append(f"| {', '.join(names)} | {'; '.join(shown)} |")
    return "\n".join(lines)


def one_sample() -> None:
    """Load a bundled model and draw from it."""
    bfn.load("digits").sample(2, nfe=3, label=3, seed=0)


def training_step(directory: Path) -> Callable[[], None]:
    """One step of the bundled recipe, after a run has been set up."""
    import torch

    from bfn.training.fitting import recipe_trainer
    from bfn.training.settings import recipe
    from bfn.training.trainer import OneProcess

    settings = recipe("digits").override({"batch": 4})
    return recipe_trainer(settings, directory, OneProcess(torch.device("cpu")), False).train_step


def one_comparison(directory: Path) -> Callable[[], None]:
    """One solver at one number of calls, judged."""
    from bfn import cli

    words = ["compare", "digits", "--solvers", "fast-sde", "--nfe", "3", "--n", "20", "--device", "cpu"]

    def run() -> None:
        cli.main([*words, "--store", str(directory / "store.jsonl")])

    return run


def walks() -> dict[str, Visit]:
    """The traced walks by name."""
    with tempfile.TemporaryDirectory() as directory:
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            step, comparison = training_step(Path(directory)), one_comparison(Path(directory))
            return {"sample": trace(one_sample), "train": trace(step), "compare": trace(comparison)}


def written(page: str, traced: dict[str, Visit]) -> str:
    """The page with the lists between its markers."""
    lists = {f"walk: {name}": listing(root) for name, root in traced.items()} | {"layers": layers()}
    for name, text in lists.items():
        found = re.search(f"(<!-- {name} -->\n).*?(<!-- end -->)", page, re.DOTALL)
        if found is None:
            raise SystemExit(f"{PAGE}: has no marker {name!r}")
        page = f"{page[: found.end(1)]}\n{text}\n\n{page[found.start(2) :]}"
    return page


def main() -> int:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page would change")
    parser.add_argument("--calls", action="store_true", help="print the calls from file to file")
    arguments = parser.parse_args()
    traced = walks()
    if arguments.calls:
        for name, root in traced.items():
            print(f"{name}:")
            for visit in root.below():
                print("  " * visit.depth, "*" if visit.is_stage else " ", visit.file, visit.function)
        return 0
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, traced)
    if arguments.check and new != page:
        print(f"{PAGE}: not what the trace gives: run python tools/trace_walks.py")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
