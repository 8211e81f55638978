"""Do the tests notice a wrong line? Change one at a time, at random, and see which tests fail.

    python tools/mutants.py --number 4 --seed 0 --out mutants.json             # all of the core: an hour on one core
    python tools/mutants.py --files src/bfn/losses.py --number 40              # one file
    python tools/mutants.py --again                                            # those that survived, after new tests

Each change (a mutant) is one operator, comparison, number, condition or call turned into another; each is tried against
the fast tests of its module that call its function, the quickest first, until one fails. Which do is measured once, on
the code as it is, and kept beside the results.

One process imports the package and collects the tests. A mutant of a function's body is tried in a fork of it, in which
the function's code is swapped; one of a module's or class's own lines needs a new process, with the file changed in
place and put back: run the tool in a copy of the project.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import pytest
from mutant_trials import ALWAYS, Collected, tested, watched

SRC = Path("src/bfn")
UNIT = "tests/unit"
WIDE = (f"{UNIT}/test_sampling.py", f"{UNIT}/solvers/test_order.py", "tests/golden/test_released_solvers.py",
        f"{UNIT}/test_arguments.py")  # fmt: skip
"""What any fault in the process itself should upset."""
TESTS = {
    "schedules": (f"{UNIT}/test_schedules.py", f"{UNIT}/test_flows.py", f"{UNIT}/test_sde.py", *WIDE),
    "flows": (f"{UNIT}/test_flows.py", f"{UNIT}/test_joint.py", f"{UNIT}/test_losses.py", *WIDE),
    "heads": (
        f"{UNIT}/heads",
        f"{UNIT}/test_conditioning.py",
        f"{UNIT}/test_losses.py",
        f"{UNIT}/test_joint.py",
        *WIDE,
    ),
    "solvers": (f"{UNIT}/solvers", *WIDE, f"{UNIT}/test_controls.py"),
    "sampling": (*WIDE, f"{UNIT}/test_batched_sampling.py", f"{UNIT}/test_conditions.py", f"{UNIT}/test_joint.py"),
    "loop": (*WIDE, f"{UNIT}/test_conditioning.py", f"{UNIT}/test_particles.py", f"{UNIT}/test_controls.py"),
    "losses": tuple(f"{UNIT}/test_{name}.py" for name in ("losses", "weightings", "presence", "error_curve")),
    "conditioning": tuple(f"{UNIT}/test_{name}.py" for name in ("conditioning", "conditions", "controls", "particles")),
    "known": (f"{UNIT}/test_conditioning.py", f"{UNIT}/test_presence.py", f"{UNIT}/test_joint.py"),
    "likelihood": (f"{UNIT}/likelihood", f"{UNIT}/exact", f"{UNIT}/test_arguments.py", f"{UNIT}/test_presence.py"),
    "storage": (f"{UNIT}/test_storage.py", f"{UNIT}/test_stored_models.py", f"{UNIT}/test_info.py"),
    "weights_file": (f"{UNIT}/test_stored_models.py", f"{UNIT}/test_storage.py"),
}
MOST_SECONDS = 40.0
"""Of the tests that a mutant is tried against, together; what only slower ones would notice counts as survived."""

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
    """Return the nodes that could replace a node by a slip of the hand."""
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


def covering(tests: dict[str, dict[str, Any]], path: Path, lines: range) -> list[str]:
    """The tests that call the function that these lines are of, the quickest first; all, where they are of none."""
    defined = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    around = [node for node in defined if node.lineno <= lines.start <= (node.end_lineno or 0)]
    # The name of a decorated function begins at its first decorator, as Python counts.
    first = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) for node in around}
    wanted = {(str(path.relative_to(SRC)), line) for line in first}
    passed = [name for name, test in tests.items() if any(tuple(place) in wanted for place in test["called"])]
    quickest = sorted(passed or tests, key=lambda name: tests[name]["seconds"])
    taken = accumulate(tests[name]["seconds"] for name in quickest)
    return [name for name, so_far in zip(quickest, taken, strict=True) if so_far <= MOST_SECONDS or name == quickest[0]]


def files() -> list[Path]:
    """The files of the core, each module's in turn."""
    found = []
    for name in TESTS:
        path = SRC / name
        found += sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [path for path in found if path.name != "__init__.py"]


def module(path: Path) -> str:
    """Return the entry of TESTS that a file belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def main() -> None:
    """Try the mutants of each file and write down what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=4, help="mutants a file, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=240, help="that the tests of one mutant may take")
    parser.add_argument("--again", action="store_true", help="try those that survived again")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    sys.path[:0] = ["src", "tests"]
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = options.files or files()
    named = list(dict.fromkeys(file for path in chosen for file in test_files(module(path))))
    pytest.main([*ALWAYS, *named], plugins=[Collected(lambda collected: try_all(collected, chosen, named, options))])


def try_all(collected: Collected, chosen: Sequence[Path], named: Sequence[str], options: argparse.Namespace) -> None:
    """All mutants that have not been tried, one of each file in turn: a run that is ended early has seen them all."""
    kept = options.out.with_suffix(".tests.json")
    known = json.loads(kept.read_text()) if kept.exists() else {}
    for file in named:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        if known.get(file, {}).get("digest") != digest:
            known[file] = {"digest": digest, "tests": watched(collected, file)}
            kept.write_text(json.dumps(known))
            taken = sum(test["seconds"] for test in known[file]["tests"].values())
            print(f"{file}: {len(known[file]['tests'])} tests, {taken:.0f} s", flush=True)
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    done = {(entry["file"], entry["line"], entry["before"], entry["after"]): entry for entry in results}
    drawn = [[(path, *mutant) for mutant in mutants(path, options.number, options.seed)] for path in chosen]
    for path, lines, before, after, changed in (one for turn in zip_longest(*drawn) for one in turn if one):
        key = (str(path), lines.start, before, after)
        if key in done and not (options.again and done[key]["fate"] == "survived"):
            continue
        start = time.monotonic()
        its_own = {name: test for file in test_files(module(path)) for name, test in known[file]["tests"].items()}
        passing = covering(its_own, path, lines)
        fate, by = tested(collected, passing, path, lines.start, changed, options.seconds)
        entry = {"file": key[0], "line": key[1], "before": before, "after": after, "fate": fate, "by": by}
        done[key] = {**entry, "seconds": round(time.monotonic() - start, 1)}
        options.out.write_text(json.dumps([*done.values()], indent=1))
        print(f"{fate:9}{path}:{lines.start}  {before}  ->  {after}  {by}", flush=True)
    survived = sum(entry["fate"] == "survived" for entry in done.values())
    print(f"{len(done) - survived} of {len(done)} killed")


if __name__ == "__main__":
    main()
