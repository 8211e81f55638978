"""Records of files: columns, lengths, parts and texts come back as they were."""

import gzip

import numpy as np
import pandas as pd
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bfn.core.errors import UserError
from bfn.data.loading import load
from bfn.data.records import Columns, RawTable, Records, Sequences, make_records, read_records
from bfn.data.text import Text
from data_files import write

DRUGS = "smiles,gap,kind\nCCO,0.25,alcohol\nc1ccccc1,-1e-2,ring\nC[NH3+],3,salt\nCCC,4.5,ring\n"


def sequences(records: Records, name: str = "sequence") -> Sequences:
    return records.columns[name]


def test_columns_of_a_csv_or_a_frame_have_their_roles(tmp_path) -> None:
    path = write(tmp_path / "drugs.csv", DRUGS)
    records = read_records(path, Columns(sequence="smiles", conditions=("gap",), label="kind"), "smiles")
    assert records.source == str(path.absolute())
    assert len(records) == 4
    x, present = records.padded()
    assert x["smiles"].shape == present["smiles"].shape == (4, 8)
    assert present["smiles"].sum(1).tolist() == [3, 8, 2, 3]
    assert not x["smiles"][~present["smiles"]].any()
    assert sequences(records, "smiles").texts() == ["CCO", "c1ccccc1", "C[NH3+]", "CCC"]
    assert torch.equal(records.conditions["gap"].values, torch.tensor([0.25, -1e-2, 3, 4.5]))
    assert records.label.names == ("alcohol", "ring", "salt")
    assert records.label.values.tolist() == [0, 1, 2, 1]
    assert records.label.shares() == (0.25, 0.5, 0.25)
    framed = make_records(RawTable.from_frame(pd.read_csv(path)), records.roles, "smiles")
    assert all(torch.equal(framed.columns[name].values, records.columns[name].values) for name in ("gap", "kind"))
    assert sequences(framed, "smiles").texts() == sequences(records, "smiles").texts()


def test_every_form_of_text_gives_the_same_records(tmp_path) -> None:
    texts = ["CCO", "CCCl", "OC"]
    files = {
        "a.txt": "\n".join(texts),
        "a.smi": "CCO ethanol\r\nCCCl chloro ethane\r\nOC methanol\r\n",
        "a.smiles": "smiles\tname\nCCO\tx\nCCCl\ty\nOC\tz\n",
        "a.csv": "smiles,other\nCCO,1\nCCCl,2\nOC,3\n",
        "b.csv": "smiles;other\nCCO;1.5\nCCCl;2.5\nOC;3.5\n",
        "a.tsv": "\ufeffother\tsmiles\n1\tCCO\n2\tCCCl\n3\tOC\n\n",
        "a.csv.gz": gzip.compress(b"smiles\nCCO\nCCCl\nOC\n", mtime=0),
    }
    for name, content in files.items():
        records = read_records(write(tmp_path / name, content), None, "smiles")
        (column,) = records.samples.values()
        assert column.texts() == texts, name
        assert column.lengths.tolist() == [3, 3, 2]
    named = read_records(tmp_path / "a.smi", Columns(sequence="smiles", parts=("name",)))
    assert named.columns["name"].names == ("chloro ethane", "ethanol", "methanol")
    # A text is records only if its columns are named.
    assert isinstance(load(tmp_path / "a.txt"), Text)
    assert len(load(tmp_path / "a.txt", "all", columns=Columns(sequence="sequence"))) == 3
    for name in ("p.fasta", "p.FA", "p.faa.gz"):
        content = b">one a protein\nMKV\nlli\n\n>two\nMA*\n"
        records = load(write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content), "all")
        assert sequences(records).texts() == ["MKVLLI", "MA*"]


def test_parquet_is_read_like_csv(tmp_path) -> None:
    table = pd.DataFrame({"smiles": ["CCO", "CC"], "gap": [0.5, 1.5], "n": [3, 2], "at": [[0.0, 1.0], [2.0, 3.0]]})
    table.to_parquet(tmp_path / "a.parquet")
    roles = Columns(sequence="smiles", parts=("at",), conditions=("gap", "n"))
    records = load(tmp_path / "a.parquet", "all", columns=roles)
    assert sequences(records, "smiles").texts() == ["CCO", "CC"]
    at, n = records.columns["at"], records.conditions["n"]
    assert at.values.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert n.values.tolist() == [3, 2]
    named = read_records(tmp_path / "a.parquet", Columns(sequence="smiles", label="n"))
    assert (named.label.names, named.label.values.tolist()) == (("2", "3"), [1, 0])
    table.assign(gap=[None, None]).to_parquet(tmp_path / "a.parquet")
    read_records(tmp_path / "a.parquet", Columns("smiles"))  # what is not asked for may be wrong


def test_arrays_of_one_or_two_axes_are_records(tmp_path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    tokens = np.arange(40).reshape(20, 2) % 7
    np.save(tmp_path / "v.npy", vectors)
    np.savez(tmp_path / "t.npz", x=tokens, y=np.arange(20) % 4, lengths=np.arange(20) % 2 + 1)
    records = load(tmp_path / "v.npy", "all")
    assert np.array_equal(records.padded()[0]["x"], vectors)
    records = load(tmp_path / "t.npz", "all")
    x, present = records.padded()
    assert np.array_equal(x["x"], tokens)
    assert present["x"].sum(1).tolist() == [1, 2] * 10
    assert records.label.n_classes == 4
    assert records.roles == Columns(parts="x", label="y")
    np.savez(tmp_path / "n.npz", x=vectors[:4], label=np.array(list("baab")))
    named = load(tmp_path / "n.npz", "all")
    assert (named.roles, named.label.names) == (Columns(parts=["x"], label="label"), ("a", "b"))


def test_parts_of_several_kinds_with_padding(tmp_path) -> None:
    present = np.arange(5) < np.array([[3], [5], [1]])
    np.savez_compressed(
        tmp_path / "m.npz", x=np.ones((3, 5, 3)), kind=np.full((3, 5), 4), gap=np.ones(3, np.float32), present=present
    )
    records = load(tmp_path / "m.npz", "all", columns=Columns(parts=("x", "kind"), conditions=("gap",)))
    x, there = records.padded()
    assert {name: tuple(values.shape) for name, values in x.items()} == {"x": (3, 5, 3), "kind": (3, 5)}
    assert there["x"].sum((1, 2)).tolist() == [9, 15, 3]
    assert torch.equal(there["kind"], torch.from_numpy(present))
    kept = records[torch.tensor([2, 0])]
    assert kept.padded()[1]["kind"].sum(1).tolist() == [1, 3]


@given(st.lists(st.text("CNO=", min_size=1, max_size=9), min_size=2, max_size=30), st.data())
@settings(max_examples=40)
def test_any_choice_of_records_has_its_own_texts(texts: list[str], drawn: st.DataObject) -> None:
    records = make_records(RawTable("here", {"s": [*texts, "CN"]}))
    index = drawn.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1))
    chosen = records[torch.tensor(index)]
    assert sequences(chosen, "s").texts() == [texts[i] for i in index]
    x, present = sequences(chosen, "s").padded(12)
    assert x.shape == present.shape == (len(index), 12)
    assert present.sum(1).tolist() == [len(texts[i]) for i in index]


def test_parts_of_a_file_are_fixed_and_disjoint(tmp_path) -> None:
    rows = "".join(f"{'ab' * (i % 7 + 1)}{'c' * i},k{i % 3}\n" for i in range(100))
    path = write(tmp_path / "a.csv", f"s,kind\n{rows}")
    roles = Columns(sequence="s", label="kind")
    *parts, again = [load(path, part, columns=roles) for part in ("train", "validation", "test", "test")]
    texts = [sequences(part, "s").texts() for part in parts]
    assert [len(part) for part in texts] == [90, 5, 5]
    assert sorted(text for some in texts for text in some) == sorted(sequences(read_records(path, roles), "s").texts())
    assert sequences(again, "s").texts() == texts[2]
    assert (again.label.names, sequences(again, "s").n_classes) == (("k0", "k1", "k2"), 3)


def test_numbers_as_classes_keep_their_digits() -> None:
    table = RawTable("here", {"x": np.ones((3, 2)), "year": np.array([1234567.0, 2000.5, 1234567.0])})
    assert make_records(table, Columns(parts="x", label="year")).label.names == ("2000.5", "1234567")


ANYTHING = st.one_of(st.binary(max_size=60), st.text('ab1.,;"\t\n\r> -', max_size=60).map(str.encode))


@given(ANYTHING, st.sampled_from([".txt", ".smi", ".fasta", ".csv", ".tsv", ".npy", ".npz", ".parquet", ".csv.gz"]))
@settings(max_examples=300)
def test_any_file_is_read_or_refused_in_one_line(tmp_path_factory, content: bytes, suffix: str) -> None:
    path = write(tmp_path_factory.getbasetemp() / f"any{suffix}", content)
    try:
        records, message = read_records(path), str(path)
    except UserError as error:
        records, message = None, str(error)
    assert message.startswith(str(path))
    assert "\n" not in message
    if records is not None:
        assert {len(column) for column in records.columns.values()} == {len(records)}
