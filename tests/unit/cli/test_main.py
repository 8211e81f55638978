"""Finding a command, reading its arguments, and what becomes of errors."""

import errno
import inspect
import os
import subprocess
import sys
import warnings
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

import bfn
import tiny
from bfn import __version__
from bfn.cli import COMMANDS, explain, main
from bfn.core.grids import GRIDS
from bfn.data.sources import FetchError
from commands import run


@pytest.fixture
def replaced(monkeypatch):
    """Replace the command "models" by a function that raises an error."""

    def replace(error: BaseException) -> None:
        def failing() -> None:
            raise error

        monkeypatch.setitem(COMMANDS, "models", failing)

    return replace


def test_the_overview_lists_every_command(capsys):
    run()
    shown = capsys.readouterr().out
    run("--help")
    assert capsys.readouterr().out == shown
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert set(COMMANDS) >= {"models", "info", "solvers", "sample", "train", "evaluate", "data fetch", "convert"}
    run("--version")
    assert capsys.readouterr().out == f"bfn {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_a_word_on_each_option(name, capsys):
    run(*name.split(), "--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Example: bfn {name}" in shown
    documented = inspect.getdoc(COMMANDS[name])
    kinds = {key: one.annotation for key, one in inspect.signature(COMMANDS[name], eval_str=True).parameters.items()}
    for group in [key for key, kind in kinds.items() if is_dataclass(kind)]:
        documented += "".join(inspect.getdoc(kind) for kind in kinds[group].__mro__)
        kinds |= get_type_hints(kinds.pop(group), include_extras=True)
    for option, kind in kinds.items():
        told_here = f"{option}: " in documented
        assert told_here or any(getattr(note, "help", None) for note in getattr(kind, "__metadata__", ())), option


def test_the_help_on_grids_and_the_dial_names_all_there_is(capsys):
    run("sample", "--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = shown[shown.index("times of the network calls:") :].partition(";")[0]
    assert {*GRIDS, "power:1.5"} <= set(told.replace(",", " ").split())
    assert "to inf" in shown[shown.index("stochasticity") :].partition(";")[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["smaple", "mnist"], ["'smaple'", "did you mean 'sample'?"]),
        (["data"], ["expected bfn data fetch"]),
        (["data", "fetch"], ["NAME", "bfn data fetch --help"]),
        (["sample"], ["MODEL", "bfn sample --help"]),
        (["sample", "m", "--nfe", "ten"], ["--nfe", "'ten'"]),
        (["sample", "m", "--nef", "10"], ["--nef", "perhaps you meant --nfe"]),
        (["evaluate", "m", "--part", "tset"], ["--part", "'tset'", "'validation'"]),
        (["convert", "a.pt", "out"], ["--config"]),
        (["train", "--seed", "9" * 20], ["--seed: 99999999999999999999: expected a whole number from 0 to 4294967295"]),
    ],
)
def test_wrong_arguments_are_one_line(arguments, parts, refused):
    line = refused(*arguments)
    for part in parts:
        assert part in line


def test_ctrl_c_leaves_with_130_and_a_line(replaced, capsys):
    replaced(KeyboardInterrupt())
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "bfn: interrupted\n"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("not ours"), OSError("no file, no full disk")])
def test_unexpected_errors_keep_their_traceback(error, replaced):
    replaced(error)
    with pytest.raises(type(error)) as caught:
        main(["models"])
    assert caught.value is error


def test_what_is_explained_and_what_is_not():
    assert explain(bfn.UserError("a\n  b")) == "a b"
    assert explain(OSError(errno.ENOSPC, "No space left", "out/a.png")) == "out/a.png: No space left"
    assert explain(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"
    assert explain(FetchError("mnist could not be had")) == "mnist could not be had"
    assert "bayesian-flow[train]" in explain(ModuleNotFoundError("No module", name="accelerate"))
    assert "bayesian-flow[cli]" in explain(ModuleNotFoundError("No module", name="PIL.Image"))
    assert explain(ImportError("x is needed: pip install 'bayesian-flow[data]'")).startswith("x is needed")
    for unexpected in (
        RuntimeError("x"), KeyError("x"), TypeError("x"), ValueError("x"), OSError("x"), OSError(errno.EPERM, "x"),
        ModuleNotFoundError("x", name="bfn.nothing"),
    ):  # fmt: skip
        assert explain(unexpected) is None


def test_without_tyro_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    for module in [name for name in sys.modules if name.startswith(("bfn.cli.", "tyro."))]:
        monkeypatch.delitem(sys.modules, module)
    assert main(["models"]) == 2
    assert capsys.readouterr().err == "bfn: tyro is needed for this: pip install 'bayesian-flow[cli]'\n"


def test_a_warning_is_one_line(monkeypatch, capsys, recwarn):
    monkeypatch.setitem(COMMANDS, "models", lambda: warnings.warn("the newest checkpoint is damaged", stacklevel=1))
    run("models")
    assert capsys.readouterr().err == "bfn: warning: the newest checkpoint is damaged\n"


def python(*words: str, **options) -> subprocess.CompletedProcess:
    """Run Python in a process of its own."""
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_does_not_wait_for_torch():
    """The package's own ``__init__`` is left out: what counts is that no command imports torch before it runs."""
    code = f"""
import sys, types
sys.modules["bfn"] = package = types.ModuleType("bfn")
package.__path__ = [{str(Path(bfn.__file__).parent)!r}]
from bfn.cli import main
assert main(["--help"]) == main(["sample", "--help"]) == 0
assert main(["sample", "--nef"]) == 2
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_what_a_card_holds_has_no_power_over_the_terminal(tmp_path, capsys):
    model = tiny.build("vectors")
    model.info.card = {"source": "\x1b]0;owned\x07\x9b31m\r\u202e", "settings": {"data": {"name": "\x1b[2J"}}}
    model.save(tmp_path / "m")
    run("info", tmp_path / "m")
    assert main(["evaluate", str(tmp_path / "m")]) == 2
    told = "".join(capsys.readouterr())
    assert "\\x1b]0;owned\\x07\\x9b31m\\x0d\\u202e" in told
    assert not [symbol for symbol in told if symbol != "\n" and not symbol.isprintable()]


def test_a_plugin_that_fails_to_import_is_one_line(tmp_path):
    package = tmp_path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[bfn.plugins]\ncommand.broken = nowhere.commands:broken\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for words, code in (("--help", 0), ("broken", 2)):
        done = python("-m", "bfn", words, env=environment)
        assert done.returncode == code
        assert "broken" in done.stdout + done.stderr
        assert done.stderr.count("\n") == (code == 2)
