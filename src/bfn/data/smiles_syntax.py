"""Whether a string can be SMILES at all: parentheses, ring numbers and bonds by the grammar, without any chemistry.

What a molecule may be like, such as how many bonds an atom has, RDKit knows (``bfn.quality``). This needs no package,
and reads a hundred thousand strings in a second.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["smiles_problem"]

BONDS = frozenset("-=#$:/\\~")


def smiles_problem(tokens: Iterable[str]) -> str | None:  # noqa: PLR0911
    """What is wrong with a string that is cut into tokens of SMILES, with its position from 0; None if nothing is."""
    depth, position, last = 0, 0, "."
    rings: set[str] = set()
    for token in tokens:
        here = f"at position {position}"
        position += len(token)
        if token in BONDS or token == "(":
            if last in BONDS or last == "." or (token == last == "("):
                return f"{token!r} {here}, where an atom is expected"
            depth += token == "("
        elif token == ")":
            depth -= 1
            if depth < 0 or last in BONDS or last == "(":
                return f"')' {here} closes nothing"
        elif token.lstrip("%").isdigit():
            if last in (".", "("):
                return f"ring number {token} {here} without an atom before it"
            rings ^= {token.lstrip("%").lstrip("0") or "0"}
        elif len(token) == 1 and not (token.isalpha() or token in "*.>"):
            return f"{token!r} {here} is no part of SMILES"
        elif len(token) == 1 and token.isalpha() and token not in "BCNOPSFIbcnops":
            return f"{token!r} {here} is no atom outside brackets"
        last = token
    if last in BONDS:
        return f"a bond {last!r} at its end that leads nowhere"
    if depth:
        return f"{depth} '(' that are not closed"
    if rings:
        return f"ring number {min(rings)}, which comes an odd number of times"
    return None
