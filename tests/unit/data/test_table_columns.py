"""Columns of tables: what they are, and that they come back as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bfn.core import plain
from bfn.data.table_columns import TableColumns
from bfn.data.table_files import infer_columns, read_table
from data_files import some_table

RNG = np.random.default_rng(0)


def same(found: pd.DataFrame, table: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, table.reset_index(drop=True), rtol=1e-9, atol=0, check_column_type=False)


def test_kinds_are_found_and_everything_comes_back() -> None:
    table = some_table()
    columns = infer_columns(table)
    assert {column.name: column.kind for column in columns.columns} == {
        "height": "number", "price": "number", "count": "number", "hundreds": "number", "gain": "number and classes",
        "age": "class", "city": "class", "grade": "class", "member": "class", "born": "number", "visit": "number",
        "score": "number", "always": "constant",
    }  # fmt: skip
    assert columns["gain"].levels == (0.0,)
    assert columns["price"].quantiles.decimals == 2
    assert columns["hundreds"].quantiles.step == 100
    parts = columns.encode(table)
    assert parts["numbers"].shape == (600, 8)
    same(columns.decode(parts), table)
    assert plain.from_plain(TableColumns, plain.to_plain(columns), "columns") == columns


def test_numbers_are_standard_normal() -> None:
    columns = infer_columns(some_table(4000))
    numbers = columns.encode(some_table(4000))["numbers"]
    assert max(numbers.mean(0).abs().max(), (numbers.std(0) - 1).abs().max()) < 0.05
    sorted_z = numbers[:, 0].sort().values
    expected = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    # Straight pieces between 500 pairs: far out they are long.
    assert (sorted_z - expected)[40:-40].abs().max() < 0.02


def test_numbers_that_no_cell_had_stay_in_the_range_and_on_the_grid() -> None:
    table = some_table()
    columns = infer_columns(table)
    parts = columns.encode(table)
    parts["numbers"] = 3 * torch.randn(parts["numbers"].shape, generator=torch.Generator().manual_seed(0))
    drawn = columns.decode(parts)
    for name in ("height", "price", "count", "hundreds", "born"):
        assert drawn[name].min() >= table[name].min()
        assert drawn[name].max() <= table[name].max()
    assert (drawn["price"].round(2) == drawn["price"]).all()
    assert (drawn["hundreds"] % 100 == 0).all()
    assert (drawn["born"] == drawn["born"].dt.normalize()).all()
    assert drawn.dtypes.equals(table.dtypes)


def test_kinds_and_drop_override_the_guess() -> None:
    columns = infer_columns(some_table(), {"age": "number", "score": "class"}, drop=np.array(["city"]))
    assert (columns["age"].kind, columns["score"].kind, "city" in columns.names) == ("number", "class", False)
    same(columns.decode(columns.encode(some_table())), some_table().drop(columns="city"))


def test_known_cells_are_masks_of_states_and_numbers() -> None:
    table = pd.DataFrame({"a": [0.0] * 20 + list(RNG.normal(size=80)), "b": ["x", "y"] * 50})
    columns = infer_columns(table)
    some = pd.DataFrame({"a": [0.0, 0.5, np.nan], "b": ["x", None, "y"]})
    parts, known = columns.encode_known(some)
    assert known["a"].tolist() == [True, True, False]
    assert known["numbers"][:, 0].tolist() == [False, True, False]
    assert known["b"].tolist() == [True, False, True]
    assert parts["b"][[0, 2]].tolist() == [0, 1]
    assert not columns.encode_known(some, ["b"])[1]["a"].any()


def test_times_far_apart_keep_their_last_digit() -> None:
    later = [f"{year}-11-01 11:59:22.000000" for year in range(1905, 2095)]
    times = pd.to_datetime(["1900-01-01 00:00:00.000001", *later])
    table = pd.DataFrame({"at": pd.Series(times.astype("datetime64[ns]"))})
    columns = infer_columns(table)
    same(columns.decode(columns.encode(table)), table)


reals = st.floats(-1e9, 1e9, allow_nan=False, width=64)
CELLS: dict[str, tuple[Any, list[str]]] = {
    "whole": (st.integers(-(10**9), 10**9), ["int64", "Int64", "object", "int64[pyarrow]"]),
    "small": (st.integers(0, 100), ["int8", "uint16", "Int32"]),
    "real": (reals, ["float64", "Float64"]),
    "single": (st.floats(-1e6, 1e6, width=32), ["float32"]),
    "rounded": (st.integers(-(10**7), 10**7).map(lambda k: k / 100), ["float64", "Float64"]),
    "truth": (st.booleans(), ["bool", "boolean", "object"]),
    "text": (st.text(max_size=3).filter(lambda s: "\0" not in s), ["str", "string", "object"]),
    "category": (st.sampled_from(["a", "b", "c"]), ["category"]),
    "time": (
        st.datetimes(pd.Timestamp("1900-01-01").to_pydatetime(), pd.Timestamp("2100-01-01").to_pydatetime()),
        ["datetime64[us]", "datetime64[ns]", "datetime64[us, UTC]"],
    ),
    "duration": (st.timedeltas(pd.Timedelta(0), pd.Timedelta(days=999)), ["timedelta64[us]"]),
    "date": (st.dates().filter(lambda d: d.year >= 1900).map(str), ["str"]),
}
WITHOUT_MISSING = {"int64", "int8", "uint16", "bool"}


@st.composite
def tables(draw: Any) -> pd.DataFrame:
    n = draw(st.integers(2, 150))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    found = {}
    for i in range(draw(st.integers(1, 5))):
        cells, dtypes = CELLS[draw(st.sampled_from(sorted(CELLS)))]
        dtype = draw(st.sampled_from(dtypes))
        pool = draw(st.lists(cells, min_size=1, max_size=12))
        values = [pool[k] for k in rng.integers(0, len(pool), n)]
        if dtype not in WITHOUT_MISSING:
            for row in draw(st.sets(st.integers(1, n - 1), max_size=4)):
                values[row] = None
        found[f"c{i}"] = pd.Series(pd.Series(values, dtype=object), dtype=dtype)
    return pd.DataFrame(found)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
def test_every_table_comes_back(table: pd.DataFrame) -> None:
    kinds = {name: "class" for name in table if isinstance(table[name].iloc[0], str)}  # never taken for free text
    assume((table.nunique(dropna=False) > 1).any())
    columns = infer_columns(table, kinds)
    found = columns.decode(columns.encode(table))
    assert list(found) == list(table)
    assert found.dtypes.equals(table.dtypes)
    for name in table:
        q = columns[str(name)].quantiles
        assert (found[name].isna() == table[name].isna()).all()
        there = table[name].notna()
        if q is not None and q.decimals is None:
            spread = max(q.values) - min(q.values)
            assert np.allclose(found[name][there].astype(float), table[name][there].astype(float), 1e-9, 1e-9 * spread)
        else:
            assert (found[name][there] == table[name][there]).all()


def test_files(tmp_path: Path) -> None:
    table = some_table(50)[["height", "price", "city", "visit", "always"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "u.csv.gz", index=False, sep=";")
    table.to_parquet(tmp_path / "t.parquet", index=False)
    for name in ("t.csv", "u.csv.gz", "t.parquet"):
        found = read_table(tmp_path / name)
        same(found, table)
        assert infer_columns(tmp_path / name).names == tuple(table)
