"""Count how much of the package a statement enters: files, code lines of the functions, pairs of files.

    python tools/walks.py sample           # one line: files, code lines, pairs of files
    python tools/walks.py sample --list    # also the files, in the order of first entry

A statement runs once unobserved, so that everything is imported. The caches of the package are then cleared, and it
runs again under ``sys.setprofile``. Module and class bodies that run at an import do not count, nor does generated code
such as the ``__init__`` of a dataclass. Frames of other packages are transparent: a network that torch calls counts as
called by whoever called torch.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import io
import os
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

INLINE = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
"""Code objects that belong to the function around them."""
APART = ("_utils/", "__init__.py")
"""Prefixes of files that do not count."""


@dataclass
class Walk:
    """Functions that were entered, and calls between files.

    Attributes:
        package: folder of the package.
        functions: by file, in the order of first entry: (qualified name, first line) -> last line.
        edges: pairs (from file, to file) of calls.
    """

    package: Path
    functions: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    edges: set[tuple[str, str]] = field(default_factory=set)

    @property
    def files(self) -> list[str]:
        """Return the files that count."""
        return [file for file in self.functions if not file.startswith(APART)]

    @property
    def code_lines(self) -> int:
        """Return the number of code lines of the functions that were entered."""
        total = 0
        for file in self.files:
            lines: set[int] = set()
            for (_, first), last in self.functions[file].items():
                lines.update(range(first, last + 1))
            total += len(lines & code_line_numbers(self.package / file))
        return total


def code_line_numbers(file: Path) -> set[int]:
    """Return the numbers of the lines that hold code: no comment, no blank line, no docstring."""
    text = file.read_text(encoding="utf-8")
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - strings


def trace(run: Callable[[], Any], package: Path) -> Walk:
    """Run a function and return its walk. All threads are observed."""
    walk, root = Walk(package), str(package) + os.sep
    known: dict[CodeType, str | None] = {}
    local = threading.local()

    def file_of(code: CodeType) -> str | None:
        if code not in known:
            inside = code.co_filename.startswith(root)
            known[code] = Path(code.co_filename).relative_to(package).as_posix() if inside else None
        return known[code]

    def observe(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        file = file_of(code)
        if file is None:
            return
        if not hasattr(local, "stack"):
            local.stack, local.importing = [], 0
        stack: list[tuple[FrameType, str]] = local.stack
        if code.co_name == "<module>" or not code.co_flags & 0x1:  # the body of a module or a class
            local.importing += 1 if event == "call" else -1
            return
        if local.importing > 0:
            return
        if event == "return":
            if stack and stack[-1][0] is frame:
                stack.pop()
            return
        entered = walk.functions.setdefault(file, {})
        key = code.co_qualname, code.co_firstlineno
        if code.co_name not in INLINE and key not in entered:
            entered[key] = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
        if stack and stack[-1][1] != file:
            walk.edges.add((stack[-1][1], file))
        stack.append((frame, file))

    threading.setprofile(observe)
    sys.setprofile(observe)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def clear_caches(package: str) -> None:
    """Empty every ``lru_cache`` of the package."""
    for found in gc.get_objects():
        # Not isinstance, which would ask proxies for their class.
        if type(found) is functools._lru_cache_wrapper and found.__module__.split(".")[0] == package:
            found.cache_clear()


# Each walk prepares what it needs and returns the function to observe.


def bundled_sample() -> Callable[[], Any]:
    """Load a bundled model and sample from it."""
    import bfn

    return lambda: bfn.load("digits").sample(16, nfe=10, label=3, seed=0)


def text() -> Callable[[], Any]:
    """Load a model of text, sample, and decode."""
    import bfn

    def run() -> None:
        model = bfn.load("text8")
        model.decode(model.sample(2, nfe=5, seed=0))

    return run


def own_model() -> tuple[Any, Any]:
    """Return a model of numbers with a network of three lines, and data for it."""
    import torch

    import bfn

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(3, 2)

        def forward(self, x: Any, t: Any) -> Any:
            return self.body(torch.cat([x, t[:, None]], 1))

    torch.manual_seed(0)
    x = torch.randn(256, 2)
    return bfn.BFN(Net(), bfn.ContinuousFlow(sigma_1=0.02), "data", (2,)), x


def own_sample() -> Callable[[], Any]:
    """Sample from a model that is in memory."""
    model, _ = own_model()
    return lambda: model.sample(16, nfe=10, seed=0)


def joint() -> Callable[[], Any]:
    """Sample joint data of two parts."""
    import torch

    import bfn

    class Net(torch.nn.Module):
        def forward(self, x: Any, t: Any) -> Any:
            return {"x": x["x"], "kind": torch.zeros_like(x["kind"])}

    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.02), kind=bfn.DiscreteFlow(5))
    model = bfn.BFN(Net(), flow, {"x": "data", "kind": "logits"}, {"x": (2,), "kind": ()})
    return lambda: model.sample(16, nfe=10, seed=0)


def conditioned() -> Callable[[], Any]:
    """Sample with guidance and known pixels, in batches."""
    import torch

    import bfn

    model = bfn.load("digits")
    mask = torch.zeros(model.data_shape, dtype=torch.bool)
    mask[:, :4] = True
    options: dict[str, Any] = {"label": 3, "guidance": 2.0, "known": torch.zeros(model.data_shape), "known_mask": mask}
    return lambda: model.sample(16, nfe=10, batch=8, seed=0, **options)


def loss() -> Callable[[], Any]:
    """Compute a loss."""
    model, x = own_model()
    return lambda: model.loss(x)


def fit() -> Callable[[], Any]:
    """Train for four steps."""
    import bfn

    def run() -> None:
        model, x = own_model()
        bfn.fit(model, x.numpy(), steps=4, batch=32, progress=False)

    return run


def _table() -> Any:
    import numpy as np
    import pandas as pd

    draw = np.random.default_rng(0)
    return pd.DataFrame({
        "age": draw.integers(18, 80, 200), "pay": draw.normal(size=200).round(4),
        "home": draw.choice(["a", "b", "c"], 200),
    })  # fmt: skip


def table_fit() -> Callable[[], Any]:
    """Train on a table."""
    import bfn

    data = _table()
    return lambda: bfn.TableSynthesizer(seed=0, steps=4, batch=32, progress=False).fit(data)


def table_sample() -> Callable[[], Any]:
    """Sample rows of a table."""
    import bfn

    fitted = bfn.TableSynthesizer(seed=0, steps=4, batch=32, progress=False).fit(_table())
    return lambda: fitted.sample(8, nfe=5)


def command() -> Callable[[], Any]:
    """Run ``bfn sample``."""
    from bfn import cli

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            with contextlib.redirect_stderr(io.StringIO()) as messages:
                code = cli.main(["sample", "digits", "--n", "4", "--nfe", "10", "--out", folder])
            if code:
                raise RuntimeError(f"exit code {code}: {messages.getvalue()}")

    return run


def likelihood() -> Callable[[], Any]:
    """Compute log-likelihoods."""
    import torch

    import bfn

    model = bfn.load("digits")
    return lambda: model.log_likelihood(torch.zeros(2, *model.data_shape), nfe=5, label=[0, 1])


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "sample": bundled_sample, "sample-own": own_sample, "text": text, "joint": joint, "conditioned": conditioned,
    "loss": loss, "fit": fit, "table-fit": table_fit, "table-sample": table_sample, "cli": command,
    "likelihood": likelihood,
}  # fmt: skip


def measured(name: str) -> Walk:
    """Return the walk of that name."""
    import bfn

    package = Path(bfn.__file__).resolve().parent
    run = WALKS[name]()
    run()
    clear_caches("bfn")
    return trace(run, package)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print walks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walk", choices=[*WALKS, "all"])
    parser.add_argument("--list", action="store_true", help="also list the files, in the order of first entry")
    parser.add_argument("--pairs", action="store_true", help="also list the pairs of files")
    options = parser.parse_args(arguments)
    for name in WALKS if options.walk == "all" else [options.walk]:
        walk = measured(name)
        print(f"{name}: files {len(walk.files)}, code lines {walk.code_lines}, pairs of files {len(walk.edges)}")
        if options.list:
            print(*(f"  {file} ({len(walk.functions[file])} functions)" for file in walk.functions), sep="\n")
        if options.pairs:
            print(*(f"  {start} -> {end}" for start, end in sorted(walk.edges)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
