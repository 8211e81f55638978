"""Print the budgets of the code base, each figure beside its limit. The exit code is 1 if one is above its limit.

    python tools/house.py               # all figures, about a minute
    python tools/house.py --no-walks    # without those for which code is run
    python tools/house.py --list kinds | decisions | docstrings | longest

Code lines are lines without comments, blank lines and docstrings, so that good docstrings cost nothing. A decision is
an if, a loop, an except, a conditional expression, an ``and`` or ``or``, a case or a filter; functions within a
function count for themselves. "Asks for the kind" counts lines that ask a model, a flow or its info which kind of data
they have, outside the files whose subject that is. `walks.py` describes the walks.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import walks

LIMITS = {
    "code lines, bfn": 20_500,
    "code lines, bfn and bfn_lab": 23_500,
    "files, bfn": 120,
    "files, bfn and bfn_lab": 145,
    "code lines, core": 4_000,
    "files, core": 20,
    "top-level entries": 21,
    "flat modules": 2,
    "files above 600 lines": 0,
    "functions above 10 decisions": 25,
    "most decisions of a function": 20,
    "lines that ask for the kind": 90,
    "docstrings that begin with Of/What/Where/Whether/Which": 60,
    "modules that import Model for its type alone": 0,
    "type: ignore": 12,
    "test lines": 20_000,
    "match= in tests": 60,
    "different names in __all__": 450,
    "names in dir(bfn)": 55,
    "parameters of sample": 12,
}
WALK_LIMITS = {
    "sample": (24, 1_450, 52),
    "sample-own": (13, 850, 26),
    "text": (25, 1_500, 56),
    "joint": (14, 980, 28),
    "conditioned": (20, 1_250, 46),
    "loss": (6, 180, 11),
    "fit": (16, 850, 36),
    "table-fit": (20, 1_400, 40),
    "table-sample": (24, 1_300, 46),
    "cli": (30, 1_900, 70),
    "likelihood": (14, 600, 24),
}
"""Maximum number of files, code lines of the functions entered, and pairs of files, by walk."""

ASKS_FOR_KIND = re.compile(
    r"\bflow\.kind\b|\b(?:model|source|self|limits)\.form\b|\binfo\.columns\b"
    r"|\.(?:text_tokenizer|part_tokenizers)\b|\binfo\.(?:tokenizer|alphabet)\b|\.has_range\b|\bflow\.n_values\b"
    r"|isinstance\([^)]*\b(?:Joint|Continuous|Discrete)Flow\b|type\([^)]*\) is (?:Continuous|Discrete)Flow"
    r"|isinstance\([^,()]*(?:shape|\bx|data)\b, Mapping\)"
)
MAY_ASK = re.compile(r"^(core/(flows|heads|joint|flat|codec)|kinds/|networks/)")
TYPE_ONLY = re.compile(r"if TYPE_CHECKING:(?:\n    .*)*from bfn\.core\.model import")
STILTED = ("Of", "What", "Where", "Whether", "Which")


@dataclass(frozen=True)
class Source:
    """A source file.

    Attributes:
        name: path within the package.
        text: content.
        tree: syntax tree.
    """

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, file: Path, root: Path) -> Source:
        """Read a file."""
        text = file.read_text(encoding="utf-8")
        return cls(file.relative_to(root).as_posix(), text, ast.parse(text))

    @property
    def functions(self) -> Iterator[tuple[int, str]]:
        """Return the number of decisions and the place of each function."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield decisions(node), f"{self.name}:{node.lineno} {node.name}"

    @property
    def docstrings(self) -> Iterator[str]:
        """Return docstrings, and strings that stand below an assignment."""
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        for node in ast.walk(self.tree):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield text
            body = getattr(node, "body", None)
            for before, after in pairwise(body) if isinstance(body, list) else ():
                named = isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr)
                if named and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                    yield after.value.value

    @property
    def public(self) -> set[str]:
        """Return the names in ``__all__``."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return set(ast.literal_eval(node.value))
        return set()

    @property
    def asks_for_kind(self) -> list[str]:
        """Return the lines that ask for the kind of data."""
        if MAY_ASK.match(self.name):
            return []
        lines = enumerate(without_strings(self.text), 1)
        return [
            f"{self.name}:{number}: {line.strip()}"
            for number, line in lines
            if not line.lstrip().startswith(("import ", "from ")) and ASKS_FOR_KIND.search(line)
        ]


def decisions(function: ast.AST) -> int:
    """Return the number of places where a function decides."""
    count, waiting = 0, list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.If | ast.For | ast.While | ast.ExceptHandler | ast.IfExp | ast.match_case | ast.Assert):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def without_strings(text: str) -> list[str]:
    """Return the lines of a source text with comments and strings blanked out."""
    lines = [list(line) for line in text.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            (first, start), (last, end) = token.start, token.end
            for row in range(first - 1, last):
                a, b = (start if row == first - 1 else 0), (end if row == last - 1 else len(lines[row]))
                lines[row][a:b] = " " * (b - a)
    return ["".join(line) for line in lines]


def code_of(folder: Path) -> tuple[int, int]:
    """Return the number of code lines and files of a folder."""
    files = sorted(folder.rglob("*.py"))
    return sum(len(walks.code_line_numbers(file)) for file in files), len(files)


def sizes(root: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the figures for which nothing is run, and lists that show where they come from."""
    package = root / "src" / "bfn"
    sources = [Source.read(file, package) for file in sorted(package.rglob("*.py"))]
    tests = "\n".join(file.read_text(encoding="utf-8") for file in sorted((root / "tests").rglob("*.py")))
    own, n_own = code_of(package)
    lab, n_lab = code_of(root / "src" / "bfn_lab")
    core, n_core = code_of(package / "core")
    entries = [entry.name for entry in package.iterdir() if entry.name != "__pycache__"]
    functions = sorted((found for source in sources for found in source.functions), reverse=True)
    kinds = [line for source in sources for line in source.asks_for_kind]
    stilted = [
        f"{source.name}: {text.strip().splitlines()[0]}"
        for source in sources
        for text in source.docstrings
        if text.split()[0].rstrip(",") in STILTED
    ]
    longest = sorted(((source.text.count("\n"), source.name) for source in sources), reverse=True)
    figures = {
        "code lines, bfn": own,
        "code lines, bfn and bfn_lab": own + lab,
        "files, bfn": n_own,
        "files, bfn and bfn_lab": n_own + n_lab,
        "code lines, core": core,
        "files, core": n_core,
        "top-level entries": len(entries),
        "flat modules": sum(entry.endswith(".py") for entry in entries),
        "files above 600 lines": sum(lines > 600 for lines, _ in longest),
        "functions above 10 decisions": sum(count > 10 for count, _ in functions),
        "most decisions of a function": functions[0][0],
        "lines that ask for the kind": len(kinds),
        "docstrings that begin with Of/What/Where/Whether/Which": len(stilted),
        "modules that import Model for its type alone": sum(bool(TYPE_ONLY.search(source.text)) for source in sources),
        "type: ignore": sum(source.text.count("type: ignore") for source in sources),
        "test lines": tests.count("\n") + 1,
        "match= in tests": len(re.findall(r"\bmatch=", tests)),
        "different names in __all__": len(set().union(*(source.public for source in sources))),
    }
    lists = {
        "kinds": kinds,
        "decisions": [f"{count:4} {place}" for count, place in functions if count > 10],
        "docstrings": stilted,
        "longest": [f"{lines:5} {name}" for lines, name in longest[:40]],
    }
    return figures, lists


def signatures() -> dict[str, int]:
    """Return the figures of the imported package."""
    import inspect

    import bfn

    parameters = inspect.signature(bfn.sample).parameters.values()
    return {
        "names in dir(bfn)": len([name for name in dir(bfn) if not name.startswith("_")]),
        "parameters of sample": sum(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters),
    }


def measured_walks() -> dict[str, int]:
    """Return the figures for which code is run."""
    figures = {}
    for name in WALK_LIMITS:
        walk = walks.measured(name)
        figures |= {
            f"walk {name}: files": len(walk.files),
            f"walk {name}: code lines": walk.code_lines,
            f"walk {name}: pairs of files": len(walk.edges),
        }
    return figures


def limits() -> dict[str, int]:
    """Return the limit of each figure."""
    kinds = ("files", "code lines", "pairs of files")
    named = {
        f"walk {name}: {kind}": value
        for name, values in WALK_LIMITS.items()
        for kind, value in zip(kinds, values, strict=True)
    }
    return LIMITS | named


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-walks", action="store_true", help="leave out the figures for which code is run")
    parser.add_argument("--json", action="store_true", help="print [figure, limit] by name, as JSON")
    parser.add_argument("--list", choices=["kinds", "decisions", "docstrings", "longest"], help="show where from")
    options = parser.parse_args(arguments)
    figures, lists = sizes(Path(__file__).parents[1])
    if options.list:
        print(*lists[options.list], sep="\n")
        return 0
    figures |= signatures() | ({} if options.no_walks else measured_walks())
    rows = {name: (value, limits()[name]) for name, value in figures.items()}
    n_above = sum(value > limit for value, limit in rows.values())
    if options.json:
        print(json.dumps(rows))
    else:
        for name, (value, limit) in rows.items():
            print(f"{'ABOVE' if value > limit else '  ok '} {name:56} {value:7,}  limit {limit:7,}")
        print(f"{n_above} above their limits")
    return 1 if n_above else 0


if __name__ == "__main__":
    sys.exit(main())
