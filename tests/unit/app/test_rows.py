"""Rows of tables on the page: what is asked for is met, what is told is escaped."""

import pandas as pd
import pytest

from bfn.app.page import _columns_view, row_view
from bfn.app.requests import RowsRequest
from bfn.tables.synthesizer import TableSynthesizer
from messages import refused


@pytest.fixture(scope="module")
def model() -> object:
    table = pd.DataFrame({"who": ["<b>", "y", "z"] * 30, "size": [float(i) * 1.25 for i in range(90)]})
    return TableSynthesizer(steps=3, batch=16, width=8, n_blocks=1, progress=False).fit(table).model


def test_rows_have_the_known_cells(model: object) -> None:
    view = row_view(model, RowsRequest("t", ("who=<b>", "size>10"), 2, 4, 0))
    assert view.count("&lt;b&gt;</td>") == 4
    assert "<b>" not in view
    assert "drawn rows met all checks" in view
    refused("column 'colour'", row_view, model, RowsRequest("t", ("colour=red",), 2, 4, 0))


def test_columns_are_told_with_levels_and_ranges(model: object) -> None:
    view = _columns_view(model)
    assert "0.0 to 111.25" in view
    assert "&lt;b&gt;, y, z" in view
