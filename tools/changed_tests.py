"""The long tests of what changed, within a time: ``make test-changed``, and a part of CI.

    python tools/changed_tests.py --since HEAD~1 --minutes 20

Changed is what differs from ``--since``; left out, from where this branch left origin/main, or, on that branch itself,
from the commit before. Without history, as in a shallow clone, nothing is known to have changed. A file of tests is run
if it changed, if it stands at the place in tests/unit that mirrors a changed file, or if it imports one by name. A test
that fails is an error; time that runs out is not, and what was left out is said.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

IMPORTS = re.compile(r"^(?:from (bfn[\w.]*) import (\w[\w, ]*)|import (bfn[\w.]*))", re.MULTILINE)
LONG = re.compile(r"mark\.long|@cases\(")


def changed_since(commit: str | None) -> list[Path]:
    """Files that differ from a commit; none where it is not known."""
    main = _git("merge-base", "HEAD", "origin/main")
    head = _git("rev-parse", "HEAD")
    base = commit or (main if main and main != head else "HEAD~1")
    return [Path(name) for name in _git("diff", "--name-only", base, "--").splitlines()]


def _git(*words: str) -> str:
    found = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def imported(text: str) -> set[str]:
    """The modules of the package that a file of tests names."""
    found = set()
    for package, names, alone in IMPORTS.findall(text):
        found |= {alone} if alone else {package, *(f"{package}.{name.strip()}" for name in names.split(","))}
    return found - {"bfn"}


def module_of(path: Path) -> str | None:
    """bfn.quality.frechet of src/bfn/quality/frechet.py; a package of its __init__."""
    if path.suffix != ".py" or path.parts[:2] != ("src", "bfn"):
        return None
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


def concerned(test: Path, changed: list[Path]) -> bool:
    """Return True if a file of tests is about one of the changed files."""
    text = test.read_text()
    if not LONG.search(text):
        return False
    modules = {name for path in changed if (name := module_of(path)) is not None}
    packages = {name.rpartition(".")[0] for name in modules} - {"bfn"}
    mirrored = {Path("tests/unit", *name.split(".")[1:-1], f"test_{name.rpartition('.')[2]}.py") for name in modules}
    return test in changed or test in mirrored or bool((modules | packages) & imported(text))


def main() -> int:
    """Run them, one file after the other."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--since", help="a commit")
    parser.add_argument("--minutes", type=float, default=20, help="that all of them may take together")
    options = parser.parse_args()
    changed = changed_since(options.since)
    tests = sorted(test for test in Path("tests").rglob("test_*.py") if concerned(test, changed))
    print(f"{len(changed)} files changed: {len(tests)} files with long tests of them", flush=True)
    end, failed, left = time.monotonic() + 60 * options.minutes, [], []
    for test in tests:
        seconds = end - time.monotonic()
        words = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-m", "long", str(test)]
        try:
            if seconds <= 0:
                raise subprocess.TimeoutExpired(words, 0)
            code = subprocess.run(words, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            left.append(str(test))
            continue
        failed += [str(test)] if code not in (0, 5) else []  # 5: nothing collected
    print(f"failed: {', '.join(failed) or 'none'}; not finished in time: {', '.join(left) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
