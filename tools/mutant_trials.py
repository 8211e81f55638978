"""One mutant against the tests: in a fork that has collected them, or in a new process. For ``mutants.py``."""

import ast
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ALWAYS = ("-s", "-q", "-m", "not long", "-p", "no:cacheprovider", "--no-header", "--tb=line")


class Reports:
    """A pytest plugin that notes which test failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One of set-up, call and tear-down is over."""
        self.failed += [report.nodeid] if report.failed else []


class Collected(Reports):
    """A pytest plugin that collects the tests, and does something else with them than to run them."""

    def __init__(self, work: Callable[["Collected"], None]) -> None:
        super().__init__()
        self.items: dict[str, pytest.Item] = {}
        self.work = work

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report which file cannot be read."""
        if report.failed:
            sys.exit(f"{report.nodeid}: not collected: {report.longrepr}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running them."""
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def run(self, names: Sequence[str], on_each: Callable[[str], object] = lambda name: None) -> str | None:
        """Run these tests, to the first that fails, and name it."""
        items = [self.items[name] for name in names]
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            on_each(item.nodeid)
            if self.failed:
                return self.failed[0]
        return None


def in_fork(work: Callable[[Callable[[str], object]], None], seconds: float) -> str | None:
    """Return what a fork of this process reported; None if it took too long."""
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


def watched(collected: Collected, file: str) -> dict[str, dict[str, Any]]:
    """The tests of a file, with their times and the functions of the package that each calls."""

    def work(tell: Callable[[str], object]) -> None:
        called: set[CodeType] = set()
        tests: dict[str, dict[str, Any]] = {}
        clock = [time.process_time()]

        def trace(frame: FrameType, event: str, arg: object) -> None:
            called.add(frame.f_code)

        def done(name: str) -> None:
            places = {(code.co_filename.partition("src/bfn/")[2], code.co_firstlineno) for code in list(called)}
            tests[name] = {
                "seconds": round(time.process_time() - clock[0], 3),
                "called": sorted(p for p in places if p[0]),
            }
            called.clear()
            clock[0] = time.process_time()

        threading.settrace(trace)
        sys.settrace(trace)
        failed = collected.run([name for name in collected.items if name.partition("::")[0] == file], done)
        tell(json.dumps({"tests": tests, "failed": failed}))

    found = json.loads(in_fork(work, 3600) or "null")
    if not found or found["failed"]:
        sys.exit(f"{file}: does not pass as it is: {found and found['failed']}")
    tests: dict[str, dict[str, Any]] = found["tests"]
    return tests


def function_at(path: Path, line: int) -> str | None:
    """The qualified name of the outermost function around a line; None of a module's or a class's own lines."""
    nodes, name = ast.parse(path.read_text()).body, ""
    while True:
        around = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
                  and node.lineno <= line <= (node.end_lineno or 0)]  # fmt: skip
        if not around:
            return None
        name += around[0].name
        if isinstance(around[0], ast.FunctionDef):
            return name
        nodes, name = around[0].body, f"{name}."


def codes(source: str, name: str) -> list[CodeType]:
    """The code of all functions of this qualified name."""
    found, left = [], [compile(source, name, "exec")]
    while left:
        code = left.pop(0)
        found += [code] if code.co_qualname == name else []
        left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found


def swap(path: Path, line: int, changed: str) -> Callable[[], None] | None:
    """Return a function that gives the loaded function around a line its changed code; None if that is not enough."""
    name = function_at(path, line)
    if name is None:
        return None
    before, after = codes(ast.unparse(ast.parse(path.read_text())), name), codes(changed, name)
    # A function that is there twice, or a change outside of the body: of a default or a decorator.
    if len(before) != 1 or len(after) != 1 or before == after:
        return None
    module = importlib.import_module(".".join(path.with_suffix("").parts[1:]))
    found: Any = functools.reduce(lambda owner, part: vars(owner)[part], name.split("."), module)
    for inside in ("fget", "func", "__func__"):
        found = getattr(found, inside, None) or found
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    if not hasattr(found, "__code__") or found.__code__.co_freevars != after[0].co_freevars:
        return None
    return lambda: setattr(found, "__code__", after[0])


def tested(
    collected: Collected, tests: Sequence[str], path: Path, line: int, changed: str, seconds: float
) -> tuple[str, str]:
    """("killed", by which test), ("late", "") or ("survived", "")."""
    swapped = swap(path, line, changed)
    if swapped is None:
        return in_new_process(tests, path, changed, seconds)

    def work(tell: Callable[[str], object]) -> None:
        swapped()
        tell(collected.run(tests) or "passed")

    said = in_fork(work, seconds)
    if said is None:
        return "late", ""
    return ("survived", "") if said == "passed" else ("killed", said or "it ended at once")


def in_new_process(tests: Sequence[str], path: Path, changed: str, seconds: float) -> tuple[str, str]:
    """The same, with the file changed in its place and all imported again."""
    whole = path.read_text()
    command = [sys.executable, "-m", "pytest", "-x", *ALWAYS, *tests]
    try:
        path.write_text(changed)
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "late", ""
    finally:
        path.write_text(whole)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("survived", "") if done.returncode == 0 else ("killed", failed[0] if failed else "it ended at once")
