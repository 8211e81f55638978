"""Do the tests notice a wrong line? Change one at a time, at random, and see which tests fail.

    python tools/mutants.py --number 12 --seed 0 --out mutants.json            # all of the core: hours on one core
    python tools/mutants.py --files src/bfn/losses.py --number 40              # one file

Each change (a mutant) is one operator, comparison, number, condition or call turned into another; each is tried against
the fast tests of its module, the nearest first, until one fails. Run it in a copy of the project: the files are changed
in place, and put back. Every mutant runs in a fork of one process that has imported torch, which is what makes it fast.
"""

import argparse
import ast
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

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
    "losses": (f"{UNIT}/test_losses.py", f"{UNIT}/test_weightings.py", f"{UNIT}/test_presence.py"),
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


def mutants(path: Path, number: int, seed: int) -> Iterator[tuple[int, str, str, str]]:
    """(line, before, after, the whole changed file) of a random sample of the mutants of a file."""
    count = len(places(ast.parse(path.read_text())))
    for k in random.Random(f"{seed} {path}").sample(range(count), min(number, count)):
        tree = ast.parse(path.read_text())
        parent, field, index, node, mutant = places(tree)[k]
        before, line = ast.unparse(node).split("\n")[0], getattr(node, "lineno", 0)
        after = ast.unparse(ast.fix_missing_locations(mutant)).split("\n")[0]
        if index is None:
            setattr(parent, field, mutant)
        else:
            getattr(parent, field)[index] = mutant
        yield line, before, after, ast.unparse(ast.fix_missing_locations(tree))


def nearest(path: Path) -> tuple[str, ...]:
    """The tests of a file's module, those that carry its own name first."""
    known = [str(found) for test in TESTS[module(path)] for found in _test_files(Path(test))]
    return tuple(sorted(dict.fromkeys(known), key=lambda test: path.stem not in Path(test).stem))


def _test_files(test: Path) -> list[Path]:
    return sorted(test.glob("test_*.py")) if test.is_dir() else [test]


def tested(tests: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """("killed", by which test), ("late", "") or ("survived", ""), from a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _child(tests, write)
    os.close(write)
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "late", ""
        time.sleep(0.05)
    with os.fdopen(read) as told:
        said = told.read()
    return ("survived", "") if said == "passed" else ("killed", said or "it ended at once")


def _child(tests: tuple[str, ...], write: int) -> None:
    import pytest

    class First:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(write, report.nodeid.encode())

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                os.write(write, f"{report.nodeid} (not collected)".encode())

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    code = 1
    try:
        code = next((code for test in tests if (code := pytest.main([*ALWAYS, test], plugins=[First()]))), 0)
        if code == 0:
            os.write(write, b"passed")
    finally:
        os._exit(int(code))


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
    import safetensors.torch  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    done = {(entry["file"], entry["line"], entry["before"], entry["after"]) for entry in results}
    # One of each file in turn, so that a run that is ended early has seen them all.
    chosen = options.files or files()
    drawn = [[(path, *mutant) for mutant in mutants(path, options.number, options.seed)] for path in chosen]
    for path, line, before, after, changed in (one for turn in zip_longest(*drawn) for one in turn if one):
        if (str(path), line, before, after) in done:
            continue
        whole, start = path.read_text(), time.monotonic()
        try:
            path.write_text(changed)
            fate, by = tested(nearest(path), options.seconds)
        finally:
            path.write_text(whole)
        entry = {"file": str(path), "line": line, "before": before, "after": after, "fate": fate, "by": by}
        results.append({**entry, "seconds": round(time.monotonic() - start, 1)})
        options.out.write_text(json.dumps(results, indent=1))
        print(f"{fate:9}{path}:{line}  {before}  ->  {after}  {by}", flush=True)
    survived = sum(entry["fate"] == "survived" for entry in results)
    print(f"{len(results) - survived} of {len(results)} killed")


if __name__ == "__main__":
    main()
