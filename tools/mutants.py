"""Do the tests notice a wrong line? Change one at a time, at random, and see which tests fail.

    python tools/mutants.py --number 12 --seed 0 --out mutants.json            # all of the core: hours on one core
    python tools/mutants.py --files src/bfn/losses.py --number 40              # one file

Each change (a mutant) is one operator, comparison, number, condition or call turned into another; each is tried against
the fast tests of its module that call its function, the quickest first, until one fails. Which do is measured once, on
the code as it is, and kept beside the results. Run it in a copy of the project: the files are changed in place, and put
back. Every mutant runs in a fork of one process that has imported torch, which is what makes it fast.
"""

import argparse
import ast
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SRC = Path("src/bfn")
UNIT = "tests/unit"
WIDE = (f"{UNIT}/test_sampling.py", f"{UNIT}/solvers/test_order.py", "tests/golden/test_released_solvers.py")
"""What any fault in the process itself should upset."""
TESTS = {
    "schedules": (f"{UNIT}/test_schedules.py", f"{UNIT}/test_flows.py", f"{UNIT}/test_sde.py", *WIDE),
    "flows": (f"{UNIT}/test_flows.py", f"{UNIT}/test_joint.py", f"{UNIT}/test_losses.py", *WIDE),
    "heads": (f"{UNIT}/heads", f"{UNIT}/test_losses.py", f"{UNIT}/test_joint.py", *WIDE),
    "solvers": (f"{UNIT}/solvers", *WIDE),
    "sampling": (*WIDE, f"{UNIT}/test_batched_sampling.py", f"{UNIT}/test_conditions.py", f"{UNIT}/test_joint.py"),
    "loop": (*WIDE, f"{UNIT}/test_conditioning.py", f"{UNIT}/test_particles.py", f"{UNIT}/test_controls.py"),
    "losses": tuple(f"{UNIT}/test_{name}.py" for name in ("losses", "weightings", "presence", "error_curve")),
    "conditioning": (f"{UNIT}/test_conditioning.py", f"{UNIT}/test_conditions.py", f"{UNIT}/test_controls.py"),
    "known": (f"{UNIT}/test_conditioning.py", f"{UNIT}/test_presence.py", f"{UNIT}/test_joint.py"),
    "likelihood": (f"{UNIT}/likelihood", f"{UNIT}/exact/test_exact_likelihood.py"),
    "storage": (f"{UNIT}/test_storage.py", f"{UNIT}/test_stored_models.py", f"{UNIT}/test_info.py"),
    "weights_file": (f"{UNIT}/test_stored_models.py", f"{UNIT}/test_storage.py"),
}
ALWAYS = ("-x", "-q", "-m", "not long", "-p", "no:cacheprovider", "--no-header", "--tb=line")

BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "sqrt": "exp", "exp": "sqrt", "sin": "cos", "cos": "sin", "any": "all",
         "all": "any", "sum": "mean", "mean": "sum", "log": "sqrt", "zeros_like": "ones_like", "clamp": "add",
         "rsqrt": "sqrt", "square": "abs"}  # fmt: skip


def mutate(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in a node's place by a slip of the hand."""
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY and not _of_types(node):
        yield ast.BinOp(node.left, BINARY[type(node.op)](), node.right)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
        yield ast.Compare(node.left, [COMPARE[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        changed = ast.Attribute(node.func.value, NAMES[node.func.attr], ast.Load())
        yield ast.Call(changed, node.args, node.keywords)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        yield ast.Call(ast.Name(NAMES[node.func.id], ast.Load()), node.args, node.keywords)


def _of_types(node: ast.BinOp) -> bool:
    """``A | B`` as a type, which annotations and isinstance hold."""
    return isinstance(node.op, ast.BitOr) and all(isinstance(side, ast.Name | ast.Constant | ast.BinOp | ast.Attribute)
                                                  for side in (node.left, node.right))  # fmt: skip


def places(tree: ast.Module) -> list[tuple[ast.AST, str, int | None, ast.AST, ast.AST]]:
    """(parent, field, index, node, its mutant) for every change that could be made; not in messages or annotations."""
    found = []

    def visit(parent: ast.AST) -> None:
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Import):
                    continue
                if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                    continue
                found.extend((parent, name, index, child, mutant) for mutant in mutate(child))
                visit(child)

    visit(tree)
    return found


def mutants(path: Path, number: int, seed: int) -> Iterator[tuple[range, str, str, str]]:
    """(lines, before, after, the whole changed file) of a random sample of the mutants of a file."""
    count = len(places(ast.parse(path.read_text())))
    for k in random.Random(f"{seed} {path}").sample(range(count), min(number, count)):
        tree = ast.parse(path.read_text())
        parent, field, index, node, mutant = places(tree)[k]
        before, lines = ast.unparse(node).split("\n")[0], range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.If):
            lines = range(node.lineno, node.body[0].lineno)
        after = ast.unparse(ast.fix_missing_locations(mutant)).split("\n")[0]
        if index is None:
            setattr(parent, field, mutant)
        else:
            getattr(parent, field)[index] = mutant
        yield lines, before, after, ast.unparse(ast.fix_missing_locations(tree))


def test_files(name: str) -> list[str]:
    """The files with the tests of a module."""
    paths = (Path(test) for test in TESTS[name])
    found = (str(file) for path in paths for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path]))
    return list(dict.fromkeys(found))


class Watch:
    """A pytest plugin that notes the functions of the package that each test calls, and how long it takes."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.called: set[CodeType] = set()
        self.failed: list[str] = []
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, arg: object) -> None:
        self.called.add(frame.f_code)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A new test."""
        self.called.clear()
        self.tests[nodeid] = {"seconds": time.process_time()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Which test failed."""
        self.failed += [report.nodeid] if report.failed else []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Which file cannot be read."""
        self.failed += [report.nodeid] if report.failed else []

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """The test is over."""
        test = self.tests[nodeid]
        places = {(code.co_filename.partition("src/bfn/")[2], code.co_firstlineno) for code in list(self.called)}
        test.update(seconds=round(time.process_time() - test["seconds"], 3), called=sorted(p for p in places if p[0]))


class Chosen:
    """A pytest plugin that leaves the chosen tests, in their order, and tells of the first that fails."""

    def __init__(self, tests: Sequence[str], tell: Callable[[str], object]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.tell = tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only these, in this order."""
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Which test failed."""
        if report.failed:
            self.tell(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Which file cannot be read."""
        if report.failed:
            self.tell(f"{report.nodeid} (not collected)")


def in_fork(work: Callable[[Callable[[str], object]], None], seconds: float) -> str | None:
    """What a fork of this process told; None if it took too long."""
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if child == 0:
            os.setsid()
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            try:
                work(told.write)
            finally:
                told.flush()
                os._exit(0)
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        told.seek(0)
        return told.read()


def watched(file: str) -> dict[str, dict[str, Any]]:
    """The tests of a file, with their times and the functions that they call."""

    def work(tell: Callable[[str], object]) -> None:
        watch = Watch()
        pytest.main([*ALWAYS, file], plugins=[watch])
        tell(json.dumps({"tests": watch.tests, "failed": watch.failed}))

    found = json.loads(in_fork(work, math.inf) or "null")
    if not found or found["failed"]:
        sys.exit(f"{file}: does not pass as it is: {found and found['failed']}")
    tests: dict[str, dict[str, Any]] = found["tests"]
    return tests


def covering(tests: dict[str, dict[str, Any]], path: Path, lines: range) -> list[str]:
    """The tests that call the function that these lines are of, quick ones first; all, where they are of none."""
    defined = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    around = [node for node in defined if node.lineno <= lines.start <= (node.end_lineno or 0)]
    # The name of a decorated function begins at its first decorator, as Python counts.
    first = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) for node in around}
    wanted = {(str(path.relative_to(SRC)), line) for line in first}
    passed = [name for name, test in tests.items() if any(tuple(place) in wanted for place in test["called"])]
    return sorted(passed or tests, key=lambda name: tests[name]["seconds"])


def tested(tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """("killed", by which test), ("late", "") or ("survived", "")."""

    def work(tell: Callable[[str], object]) -> None:
        named = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        if pytest.main([*ALWAYS, *named], plugins=[Chosen(tests, tell)]) == 0:
            tell("passed")

    said = in_fork(work, seconds)
    if said is None:
        return "late", ""
    return ("survived", "") if said == "passed" else ("killed", said or "it ended at once")


def files() -> list[Path]:
    """The files of the core, each module's in turn."""
    found = []
    for name in TESTS:
        path = SRC / name
        found += sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [path for path in found if path.name != "__init__.py"]


def module(path: Path) -> str:
    """Which entry of TESTS a file belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def main() -> None:
    """Try the mutants of each file and write down what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=12, help="mutants a file, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=240, help="that the tests of one mutant may take")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    sys.path[:0] = ["src", "tests"]
    # What the tests import, so that no fork pays for it again; nothing of the package itself.
    import hypothesis  # noqa: F401
    import numpy as np  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    kept = options.out.with_suffix(".tests.json")
    tests = json.loads(kept.read_text()) if kept.exists() else {}
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    done = {(entry["file"], entry["line"], entry["before"], entry["after"]) for entry in results}
    # One of each file in turn, so that a run that is ended early has seen them all.
    chosen = options.files or files()
    for file in dict.fromkeys(file for path in chosen for file in test_files(module(path))):
        if file not in tests:
            tests[file] = watched(file)
            kept.write_text(json.dumps(tests))
            print(
                f"{file}: {len(tests[file])} tests, {sum(t['seconds'] for t in tests[file].values()):.0f} s", flush=True
            )
    drawn = [[(path, *mutant) for mutant in mutants(path, options.number, options.seed)] for path in chosen]
    for path, lines, before, after, changed in (one for turn in zip_longest(*drawn) for one in turn if one):
        if (str(path), lines.start, before, after) in done:
            continue
        whole, start = path.read_text(), time.monotonic()
        try:
            known = {name: test for file in test_files(module(path)) for name, test in tests[file].items()}
            chosen_tests = covering(known, path, lines)
            path.write_text(changed)
            fate, by = tested(chosen_tests, options.seconds)
        finally:
            path.write_text(whole)
        entry = {"file": str(path), "line": lines.start, "before": before, "after": after, "fate": fate, "by": by}
        results.append({**entry, "seconds": round(time.monotonic() - start, 1)})
        options.out.write_text(json.dumps(results, indent=1))
        print(f"{fate:9}{path}:{lines.start}  {before}  ->  {after}  {by}", flush=True)
    survived = sum(entry["fate"] == "survived" for entry in results)
    print(f"{len(results) - survived} of {len(results)} killed")


if __name__ == "__main__":
    main()
