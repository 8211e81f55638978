"""Tables in Markdown."""

from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table.

    >>> markdown_table(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
