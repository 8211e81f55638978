"""The public surface: names are imported when they are first used, and every listed name exists."""

import subprocess
import sys

import bfn


def test_torch_is_not_imported_before_it_is_used() -> None:
    code = "import sys, bfn; assert not hasattr(bfn, 'nothing') and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_all_names_exist() -> None:
    assert all(hasattr(bfn, name) for name in bfn.__all__)
    assert set(bfn.__all__) <= set(dir(bfn))
