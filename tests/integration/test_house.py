"""The code base stays within its budgets."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_budgets_hold() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "house.py")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    above = [line for line in run.stdout.splitlines() if line.startswith("ABOVE")]
    assert run.returncode == 0, "\n".join(above) or run.stderr
