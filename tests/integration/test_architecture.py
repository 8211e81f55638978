"""The page on the architecture is what the trace and the layers give."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, str(ROOT / "tools" / "trace_walks.py")]


def test_the_page_is_what_the_trace_gives() -> None:
    """In a process of its own: what was run or cached before would not be traced again."""
    run = subprocess.run([*TOOL, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_sample_and_a_training_step_enter_no_file_twice() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for walk in ("sample", "train"):
        listed = page.split(f"<!-- walk: {walk} -->")[1].split("<!-- end -->")[0]
        assert "none entered twice" in listed, walk
