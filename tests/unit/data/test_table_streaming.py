"""Tables in pieces: the same columns and rows as the whole, in little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bfn.data import table_files as table_streaming
from bfn.data.table_files import TableStream, infer_columns, read_table
from bfn.tables.synthesizer import TableSynthesizer
from bfn.tables.training import table_model


@pytest.fixture
def table() -> pd.DataFrame:
    """What a piece alone does not tell: a gap far down, texts that are dates at first, levels of the last piece."""
    rng = np.random.default_rng(0)
    n = 1000
    found = pd.DataFrame({
        "age": rng.integers(18, 90, n),
        "income": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(3, 1, n)).round(2),
        "city": rng.choice(["Oslo", "Rome"], n),
        "day": pd.date_range("2001-01-01", periods=n).strftime("%Y-%m-%d"),
        "member": rng.random(n) < 0.2,
        "weight": rng.normal(70, 9, n),
    })  # fmt: skip
    found.loc[990, "city"] = "Bonn"
    return found.assign(age=found["age"].mask(found.index == 900))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_pieces_give_the_same_columns_and_rows_as_the_whole(
    table: pd.DataFrame, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_streaming, "PIECE", 170)
    path = tmp_path / name
    if name == "t.parquet":
        table.to_parquet(path, index=False, row_group_size=250)
    else:
        table.to_csv(path, index=False, sep="\t" if name == "t.tsv" else ",")
    stream, whole = TableStream.open(path), read_table(path)
    columns = infer_columns(stream, drop=["weight"])
    assert columns == infer_columns(whole, drop=["weight"])
    model = table_model(columns)
    found = stream.encoded(columns, model.as_data, tmp_path / "rows")
    expected = model.as_data(columns.encode(whole)).float()
    told = torch.cat([mask for mask in columns.encode_known(whole)[1].values() if mask.ndim == 2], 1)
    numbers = told.shape[1]
    assert torch.equal(found[:, numbers:], expected[:, numbers:])
    assert torch.equal(found[:, :numbers][told], expected[:, :numbers][told])


def test_a_stream_is_learned_as_its_whole(table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = table[["age", "weight", "member"]].dropna().reset_index(drop=True)
    numbers.to_parquet(tmp_path / "t.parquet", row_group_size=100)
    settings = {"steps": 5, "batch": 32, "width": 16, "n_blocks": 1, "progress": False}
    expected = TableSynthesizer(**settings).fit(numbers).sample(5, nfe=2)
    monkeypatch.setattr(table_streaming, "LARGE", 10)
    monkeypatch.setattr(table_streaming, "PIECE", 300)
    pd.testing.assert_frame_equal(TableSynthesizer(**settings).fit(tmp_path / "t.parquet").sample(5, nfe=2), expected)


def test_many_numbers_are_counted_with_their_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_streaming, "PIECE", 500)
    monkeypatch.setattr(table_streaming, "MOST_COUNTED", 1000)
    x = np.random.default_rng(0).lognormal(0, 1, 20_000)
    pd.DataFrame({"x": x}).to_parquet(tmp_path / "t.parquet")
    columns = infer_columns(TableStream.open(tmp_path / "t.parquet"))
    z = columns.encode(pd.DataFrame({"x": x}))["numbers"][:, 0]
    # Quantiles are normal: within 4 / sqrt(20000), beside what the thinning makes of shares, 1 / 500.
    assert max(abs(float(z.mean())), abs(float(z.std()) - 1)) < 0.03
    values = columns["x"].quantiles.values
    assert (values[0], values[-1]) == (x.min(), x.max())


LITTLE = """
import resource, sys
from pathlib import Path
import torch
from bfn.data.table_files import TableStream, infer_columns
from bfn.core.info import ModelInfo
from bfn.tables.training import TableObjective, table_model, table_trainer
from bfn.training.source import TensorSource
torch.set_num_threads(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = TableStream.open(sys.argv[1])
columns = infer_columns(stream)
model = table_model(columns, width=32, n_blocks=1)
x = stream.encoded(columns, model.as_data, Path(sys.argv[2]))
training = table_trainer(TableObjective(model, TensorSource(x, {}, ModelInfo()), 256, 0), 20, 1e-3)
for _ in range(20):
    training.train_step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.long
def test_memory_holds_a_piece(tmp_path: Path) -> None:
    """Beside mapped pages of the rows, the libraries, a piece and the counts: not 2 million rows, 520 MB in pandas."""
    rng = np.random.default_rng(0)
    schema = pa.schema([*((f"x{i}", pa.float64()) for i in range(20)), ("city", pa.string())])
    with pq.ParquetWriter(tmp_path / "t.parquet", schema) as writer:
        for _ in range(20):
            piece = {f"x{i}": rng.normal(size=100_000) for i in range(20)}
            writer.write_table(pa.table({**piece, "city": rng.choice(["Oslo", "Rome"], 100_000)}, schema=schema))
    done = subprocess.run(
        [sys.executable, "-c", LITTLE, tmp_path / "t.parquet", tmp_path / "rows"], capture_output=True, check=True
    )
    mapped = (tmp_path / "rows").stat().st_size / 2**20
    assert float(done.stdout) < mapped + 400
