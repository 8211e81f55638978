"""The package's surface: modules are there without being imported first, and nothing is imported before it is used."""

import subprocess
import sys

CODE = """
import sys, bfn
assert not hasattr(bfn, "nothing") and "torch" not in sys.modules
for name in ("info", "tuning", "storage", "conditioning", "grids", "quality"):
    assert getattr(bfn, name).__name__ == f"bfn.{name}" and name in dir(bfn)
"""


def test_modules_are_there_when_they_are_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
