"""Old names of ``bfn.core.table``, until their importers have moved."""

from bfn.core.table import BoundRow, BoundTable, Number, Row, Table

__all__ = ["BoundRow", "BoundTable", "Number", "Row", "Table"]
