"""Finding a command, reading its arguments, and what becomes of errors."""

import errno
import inspect
import os
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import bfn
import tiny
from bfn import __version__
from bfn.cli import COMMANDS, explain, main
from bfn.core.grids import GRIDS
from bfn.data.sources import FetchError
from messages import refused as raised


def test_the_overview_lists_every_command(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == shown
    for name in COMMANDS:
        assert f"  {name} " in shown


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bfn {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_a_word_on_each_option(name, capsys):
    assert main([*name.split(), "--help"]) == 0
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
    assert main(["sample", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = shown[shown.index("times of the network calls:") :].partition(";")[0]
    assert all(name in told.replace(",", " ").split() for name in GRIDS)
    assert "power:1.5" in told
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


def test_ctrl_c_leaves_with_130_and_a_line(monkeypatch, capsys):
    def interrupted() -> None:
        """Wait."""
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "models", interrupted)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "bfn: interrupted\n"


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    def broken() -> None:
        """Fail."""
        raise RuntimeError("a bug")

    monkeypatch.setitem(COMMANDS, "models", broken)
    with pytest.raises(RuntimeError) as error:
        main(["models"])
    assert str(error.value) == "a bug"


@pytest.mark.parametrize("error", ["ValueError('not ours')", "OSError('no file, no full disk')"])
def test_an_error_of_others_shows_its_traceback_and_leaves_with_1(error):
    code = f"""
import sys
from bfn.cli import COMMANDS, main
def broken() -> None:
    "Fail."
    raise {error}
COMMANDS["models"] = broken
sys.exit(main(["models"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == error.replace("('", ": ").replace("')", "")


def test_a_value_error_from_inside_torch_keeps_its_traceback(models, monkeypatch, tmp_path):
    def broken(*_: object, **__: object) -> None:
        torch.distributions.Normal(0.0, -1.0, validate_args=True)

    monkeypatch.setattr("bfn.core.sampling.BoundRequest.draw", broken)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        main(["sample", str(models / "text"), "--out", str(tmp_path)])
    assert not isinstance(caught.value, bfn.UserError)
    assert "constraint" in str(caught.value)


def test_bfn_traceback_shows_expected_errors_too(monkeypatch):
    monkeypatch.setenv("BFN_TRACEBACK", "1")
    raised("expected a command", main, ["nothing"])


def test_a_full_disk_is_told_with_its_file():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/samples.png")
    assert explain(error) == "out/samples.png: No space left on device"


def test_what_is_explained_and_what_is_not():
    assert explain(bfn.UserError("a\n  b")) == "a b"
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
    def warned() -> None:
        """Warn."""
        import warnings

        warnings.warn("the newest checkpoint is damaged", stacklevel=1)

    monkeypatch.setitem(COMMANDS, "models", warned)
    assert main(["models"]) == 0
    assert capsys.readouterr().err == "bfn: warning: the newest checkpoint is damaged\n"


def test_the_list_of_commands_is_the_surface():
    expected = {"models", "info", "solvers", "sample", "train", "evaluate", "data fetch", "convert", "bench"}
    assert set(COMMANDS) >= expected


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_card_holds_has_no_power_over_the_terminal(tmp_path, capsys):
    model = tiny.build("vectors")
    model.info.card = {"source": "\x1b]0;owned\x07\x9b31m\r\u202e", "settings": {"data": {"name": "\x1b[2J"}}}
    model.save(tmp_path / "m")
    assert main(["info", str(tmp_path / "m")]) == 0
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
    for words, code in ((["--help"], 0), (["broken"], 2)):
        command = [sys.executable, "-m", "bfn", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert done.returncode == code
        assert "broken" in done.stdout + done.stderr
        assert done.stderr.count("\n") == (code == 2)
