"""The code in the documents runs: every ```python block, in order, one namespace a file.

CONTRIBUTING.md has a test of its own, ``test_contributing.py``: its blocks add to registries.

Command lines, in the documents and in the commands' own help, are read by the command's parser; those that take seconds
are run as well. Files, make targets and extras that they name exist.
"""

import inspect
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bfn import cli
from bfn.cli import COMMANDS
from bfn.data.loading import ModelData

ROOT = Path(__file__).parents[2]
FILES = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "path", [p for p in FILES if blocks(p) and p.name != "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_code_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {"__name__": f"document_{path.stem}"}
    for block in blocks(path):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_tests_named_in_the_theory_page_exist() -> None:
    """Each erratum names the test that shows it."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", text)
    assert len(named) > 15
    for file, function in named:
        assert f"def {function}" in sources[file] if function else file in sources


CHEAP = {"models", "info", "solvers", "sample"}
"""Commands that are run wherever a document shows them on a bundled model; the others may train for hours."""


def command_lines(path: Path) -> list[str]:
    """Return what a reader would type: lines of ```sh blocks, and those after a $ in ```console blocks."""
    text = path.read_text(encoding="utf-8")
    found = []
    for kind, block in re.findall(r"^```(sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "sh" or line.startswith("$ "):
                found.append(line.removeprefix("$ ").strip())
    return [line for line in found if line and not line.startswith("#")]


def examples(name: str) -> list[str]:
    """The command lines that the help of a command shows."""
    return re.findall(r"^ *Example: (bfn .*)$", inspect.getdoc(COMMANDS[name]) or "", re.MULTILINE)


LINES = sorted(
    {(path.name, line) for path in FILES for line in command_lines(path)}
    | {(f"bfn {name} --help", line) for name in COMMANDS for line in examples(name)}
)


@pytest.mark.parametrize(("document", "line"), LINES, ids=[f"{name}: {line}" for name, line in LINES])
def test_command_lines_are_right(document: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    for runner in (["accelerate", "launch", "-m"], ["torchrun", "--nproc_per_node", "2", "-m"], ["python", "-m"]):
        if words[: len(runner)] == runner:
            words = [word for word in words[len(runner) :] if word != "--"]
    if words[0] == "bfn":
        call = cli.bind(words[1:])
        if not _bundled(words) or any("/" in word for word in words) or "--known" in words:
            return
        monkeypatch.chdir(tmp_path)
        if words[1] in CHEAP:
            few = {"n": min(call.keywords["n"], 20)} if "n" in call.keywords else {}
            assert not call(**few)
        elif words[1] == "likelihood":
            # With one sample, no data to fetch and the fewest calls: the settings fit together.
            monkeypatch.setattr("bfn.data.loading.read_model_data", _nothing)
            few = replace(call.keywords["held_out"], n=1)
            assert not call(held_out=few, nfe=5, tolerance=None)
    elif words[0] in ("python", "pytest", "torchrun"):
        files = [word for word in words if word.startswith(("tests/", "tools/", "benchmarks/", "examples/"))]
        assert files or words[0] == "pytest", f"{document}: {line}: names no file of this project"
        for file in files:
            assert (ROOT / file.partition("::")[0]).exists(), f"{document}: {line}: no {file}"
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= {*targets, *(word for word in words if "=" in word)}
    elif words[:2] == ["pip", "install"]:
        named = re.findall(r"\[([a-z,]+)\]", line)
        extras = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert {extra for group in named for extra in group.split(",")} <= set(extras)
    else:
        pytest.fail(f"{document}: {line}: a command that nobody checks")


def _nothing(model, source, part, n, **_):  # type: ignore[no-untyped-def]
    """n samples of the lowest value, and labels where the model knows classes."""
    lowest = torch.full((n, *model.data_shape), -1.0)
    labels = torch.zeros(n, dtype=torch.int64) if model.info.classes else None
    x = lowest if model.flow.has_range else torch.zeros_like(lowest, dtype=torch.int64)
    return ModelData(x, labels, "nothing", part)


def _bundled(words: list[str]) -> bool:
    from bfn.storage import models as storage

    return words[1] in ("models", "solvers") or (len(words) > 2 and words[2] in storage.bundled())


def test_settings_in_the_training_page_are_settings(tmp_path: Path) -> None:
    from bfn.training.settings import read_settings

    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    written = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert written
    for block in written:
        (tmp_path / "run.yaml").write_text(block)
        assert read_settings(tmp_path / "run.yaml").steps > 0


@pytest.mark.parametrize("name", ["text8", "text8-plain", "mnist", "mnist-binary", "digits"])
def test_figures_of_the_bundled_models_are_those_of_their_cards(name: str) -> None:
    from bfn.storage import models as storage

    measured = storage.read_info(name).card["measured"]
    settings = ("solver", "nfe", "samples", "t_start")
    readme, page = ((ROOT / path).read_text().replace("**", "") for path in ("README.md", "docs/results/README.md"))
    for row in measured:
        figures = [value for key, value in row.items() if key not in settings]
        main = figures[0].split("]")[0] + "]"
        assert main in page, f"{name}: {row['solver']} at {row['nfe']} calls: {main} is not in docs/results/README.md"
        if (row["solver"], row["nfe"]) not in (("auto", 10), ("bfn", 5)):
            assert main in readme, f"{name}: {row['solver']} at {row['nfe']} calls: {main} is not in README.md"
