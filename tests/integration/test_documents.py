"""The code in the documents runs: every ```python block, in order, one namespace a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [p for p in FILES if blocks(p)], ids=lambda path: path.name)
def test_code_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {"__name__": f"document_{path.stem}"}
    for block in blocks(path):
        exec(compile(block, str(path), "exec"), namespace)
    if path.name == "CONTRIBUTING.md":
        check_the_example_solver(namespace["SOLVERS"][0])


def check_the_example_solver(solver) -> None:  # type: ignore[no-untyped-def]
    """It is BFN-Solver2 under another name: the same rows."""
    import bfn
    from bfn.sampling import make_table

    flow = bfn.DiscreteFlow(5)
    ours, theirs = make_table(flow, solver, 6, "uniform", 0.1), make_table(flow, "bfn-solver2", 6, "uniform", 0.1)
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        assert (a.t, a.a, a.c) == (b.t, b.a, b.c)
        assert a.b == pytest.approx(b.b)


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
