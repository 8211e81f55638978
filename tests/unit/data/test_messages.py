"""Error messages: one line that has the value or the place, what was expected, and what to do."""

import gzip
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import bfn
import tiny
from bfn.core import plain
from bfn.data.images import (
    Images,
    concatenate,
    from_array,
    read_cifar_folder,
    read_folder,
    read_idx_images,
    read_npy,
    read_npz,
)
from bfn.data.loading import known_part, load, read_model_data, record_lengths
from bfn.data.records import Columns, RawTable, make_records, read_records
from bfn.data.sources import fetch
from bfn.data.table_files import TableStream, infer_columns, read_table
from bfn.data.text import Text, read_text
from bfn.data.tokenizers import AMINO_ACIDS, TEXT8, Alphabet, Tokenizer, TokenizerFile, TokenList, make_tokenizer
from data_files import Bomb, idx, image_file, pixels, some_table, write, zipped
from messages import refused

Case = tuple[Callable[[Path], object], str]

GREY = np.zeros((2, 4, 4), np.uint8)
SMILES = TokenList.from_texts(["CC(=O)Oc1ccccc1C(=O)O", "[Na+].[Cl-]Br"], "smiles")
PLAIN = "not a plain numpy file (pickled objects are never loaded)"


def read(reader: Callable[..., object], name: str, content: str | bytes, *more: Any) -> Callable[[Path], object]:
    """Return a call that writes a file and reads it."""
    return lambda tmp: reader(write(tmp / name, content), *more)


def saved(reader: Callable[..., object], name: str, *more: Any, **arrays: Any) -> Callable[[Path], object]:
    """Return a call that saves arrays in an .npz file, or the only array in an .npy file, and reads it."""

    out = io.BytesIO()
    np.savez_compressed(out, **arrays) if name.endswith(".npz") else np.save(out, *arrays.values(), allow_pickle=True)
    return read(reader, name, out.getvalue(), *more)


def call(function: Callable[..., object], *args: Any, **options: Any) -> Callable[[Path], object]:
    """Return a call that needs no file."""
    return lambda _: function(*args, **options)


def header(shape: str) -> bytes:
    """Return an .npy file of 3 images of 28x28 whose header says another shape."""
    out = io.BytesIO()
    np.save(out, np.zeros((3, 28, 28), np.uint8))
    whole = out.getvalue()
    return whole[:128].replace(b"(3, 28, 28)", shape.encode())[:128].ljust(127) + b"\n" + whole[128:]


def folder_of(**images: Any) -> Callable[[Path], object]:
    """Return a call that reads a folder of images, which are arrays, or the bytes of files."""

    def attempt(tmp: Path) -> object:
        (tmp / "images").mkdir()
        for name, image in images.items():
            path = tmp / "images" / f"{name}.png"
            write(path, image) if isinstance(image, bytes) else Image.fromarray(image).save(path)
        return read_folder(tmp / "images", progress=False)

    return attempt


PNG = image_file(pixels(5, 4))
SOME_IMAGES = Images(torch.zeros(200, 1, 1, 1, dtype=torch.uint8))
BYTES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
IMAGES: list[Case] = [
    (call(Images, torch.zeros(2, 1, 4, 4)), "torch.float32"),
    (call(Images, torch.zeros(2, 4, 4, dtype=torch.uint8)), "shape (2, 4, 4)"),
    (call(Images, BYTES, torch.zeros(3).long()), "shape (3,)"),
    (call(from_array, np.zeros((2, 4, 4))), "float64 are not whole numbers in 0..255: save them as uint8"),
    (call(from_array, np.zeros((2, 5, 4, 4), np.uint8)), "(2, 5, 4, 4)"),
    (saved(load, "x.npz", x=GREY, y=np.array([0, 10**12])), "whole numbers from 0 up, below 1,000,000"),
    *((call(SOME_IMAGES.split, wrong), "at least 1 must be on each side") for wrong in (0, 200, 0.001)),
    (call(concatenate, from_array(GREY), from_array(GREY).binarise()), "images of two kinds"),
    (saved(read_npy, "bomb.npy", x=np.array([Bomb()], dtype=object)), PLAIN),
    (read(read_npy, "plain.npy", pickle.dumps(Bomb())), PLAIN),
    (saved(read_npz, "two.npz", a=GREY, b=GREY), "expected one array of images and at most one of labels, found a (2,"),
    *(
        (read(reader, f"x{ending}", content), f"x{ending}: {PLAIN}")
        for shape in ("(10000000, 28, 28)", "(-1, 28, 28)", f"({2**70},)", "(3, 28, 27)")
        for reader, ending, content in (
            (read_npy, ".npy", header(shape)), (read_npz, ".npz", zipped({"x.npy": header(shape)})),
        )
    ),
    *((read(read_npy, "x.npy", header("(3, 28, 28)")[:keep]), f"x.npy: {PLAIN}") for keep in (0, 5, 100, 190)),
    *((read(read_npz, "x.npz", zipped({"x.npy": header("(3, 28, 28)")})[:keep]), PLAIN) for keep in (0, 5, 100, 190)),
    (read(read_idx_images, "x-idx3", b"\x00\x00\x0d\x03" + b"\0" * 40), "not an idx file of unsigned bytes"),
    (read(read_idx_images, "x-idx3", idx(GREY)[:9]), "ends within its header"),
    (read(read_idx_images, "x-idx3", idx(GREY)[:-1]), "says 32 bytes, found 31"),
    (read(read_idx_images, "x-idx3", idx(GREY) + b"x"), "says 32 bytes, found more than 32"),
    (read(read_idx_images, "x-idx3.gz", gzip.compress(idx(pixels(20, 8, 8)))[:-9]), "a damaged file"),
    (read(lambda path: read_cifar_folder(path.parent), "data_batch_2.bin", b"x" * 100), "2.bin: 100 bytes are not a"),
    (folder_of(), "no files in this folder"),
    (folder_of(a=pixels(5, 4), b=pixels(6, 4)), "b.png: 4x6 pixels, but "),
    (folder_of(a=pixels(5, 4), b=b"hello"), "b.png: not an image of PNG, JPEG"),
    (folder_of(a=image_file(pixels(5, 4), "EPS")), "a.png: not an image of PNG, JPEG"),
    (folder_of(a=pixels(5, 4), b=np.zeros((5, 4), np.uint16)), "more than 8 bits"),
    (folder_of(a=pixels(5, 4), b=PNG[:-30]), "b.png: a damaged image"),
]  # fmt: skip


ABCD = Text(torch.tensor([1, 2, 3, 4]), torch.arange(27), TEXT8)
TEXTS: list[Case] = [
    (call(Alphabet, "a"), "at least 2"),
    (call(Alphabet, "aba"), "'a' is in it more than once"),
    (call(TEXT8.encode, "aXb"), "'X' at position 1 is not among the symbols"),
    (read(read_text, "t.txt", "abc Def3", TEXT8), "t.txt: 'D' at byte 4 is not among the 27 symbols"),
    (read(read_text, "t.txt", "\u00e9\u00e9z", Alphabet("\u00e9a")), "'z' at position 2 is not among the symbols"),
    (read(read_text, "t.txt", ""), "t.txt: an empty file"),
    (read(read_text, "t.txt", "ab\0c"), "byte 2 is zero"),
    (read(read_text, "t.txt", "caf\u00e9 x".encode("latin-1")), "line 1: byte 0xe9 is not UTF-8"),
    *((call(ABCD.windows, 1, n), f"length={n}: the text has 4 characters") for n in (0, 5)),
    (call(ABCD.tiles, 2, 3), "n=3: 4 characters hold 1 to 2 windows of length 2"),
    *((call(ABCD.split, n), "at least 1 must be on each side") for n in (0, 4, 0.01)),
    (call(SMILES.encode, "CC(=O)[U]C"), "'[U]' at position 6 is not among the"),
    (call(TokenList(("ab", "c")).encode, "abcac"), "'a' at position 3 is not among the 2 tokens 'ab', 'c'"),
    (call(SMILES.encode_prompt, "[Na+]_J", 5), "prompt '[Na+]_J', piece 'J': 'J' at position 0 is not among"),
    (call(SMILES.encode_prompt, "C_[Na+]", 2), "a prompt of 3 tokens: the model's texts have 2"),
    *((call(TEXT8.encode_prompt, *wrong), "expected") for wrong in (("a", 5, ""), (None, 5), ("a", 0), ("a", 5, None))),
    (call(TokenList, ("C", "")), "token number 1 is empty"),
    (call(TokenList, ("C", "O", "C")), "'C' is in it more than once"),
    (call(TokenList, ("C", "O"), "["), "not a regular expression"),
    (call(TokenList.from_texts, ["a b c d"], "words", most=3), "more than 3 different tokens"),
    (call(make_tokenizer, "smile", ["CC"]), "did you mean 'smiles'"),
    (read(TokenizerFile.read, "t.json", "{"), "not a tokenizer file"),
    (read(TokenizerFile.read, "t.json", "{}"), "not a tokenizer of the tokenizers package"),
    (lambda tmp: TokenizerFile.read(tmp / "other.json"), "no such file"),
    (read(read_text, "s.txt", "one two", TokenList(("two", "c"), "words")), "s.txt: 'one' at position 0 is not among"),
    (call(plain.from_plain, Tokenizer, {"name": "token"}, "info"), "'token': expected one of characters, tokens, file"),
    (call(plain.from_plain, Tokenizer, {"name": "tokens", "tokens": ["a", 3]}, "it"), "it tokens.tokens[1] 3: exp"),
    (call(bfn.ModelInfo, alphabet="ab", tokenizer=SMILES), "alphabet 'ab' beside a tokenizer"),
    (
        call(bfn.BFN, print, bfn.DiscreteFlow(21), "logits", (4,), bfn.ModelInfo(tokenizer=AMINO_ACIDS)),
        "20 characters: the flow has 21 classes; expected as many",
    ),
]  # fmt: skip


SV = {"sequence": "s", "conditions": ("v",)}
RECORD_FILES = [
    ("a.txt", "one\n\ntwo\n", {}, "line 2: empty: expected a record"),
    ("a.txt", b"one\ntw\0o\n", {}, "line 2: has a zero byte"),
    ("a.txt", "\n \n", {}, "an empty file"),
    ("a.smi", "CC\n\nCCO\n", {}, "line 2: empty: expected a SMILES"),
    ("a.smi", "CC\nC\u00a3O\n", {"tokenizer": AMINO_ACIDS}, "line 2: '\u00a3' at position 1 is not among"),
    ("a.smi", "CC\nC1CO\n", {}, "line 2: smiles is 'C1CO', not a molecule: ring number 1, which comes an odd number"),
    ("a.smi", "smiles id id\nCC 1 2\n", {}, "line 1: columns smiles, id, id: expected each name once"),
    ("a.fasta", "MKV\n>one\nMK\n", {}, "line 1: 'MKV' before the first header"),
    ("a.fasta", ">one\nMKV\n>two\n", {}, "line 3: 'two' is empty"),
    ("a.fasta", ">one\nMKV\nM1K\n", {}, "line 3: '1' in a sequence"),
    ("a.fasta", ">one\nMKV\n\n>two\nMA*\n", {"tokenizer": AMINO_ACIDS}, "line 4: '*' at position 2 is not among"),
    ("a.csv", "s,v\nAB,1\nBA\n", {}, "line 3: has 1 values: expected 2"),
    ("a.csv", 's,v\n"A\nB",1\nBA,2,3\n', {}, "line 4: has 3 values"),
    ("a.csv", 's,v\n"AB,1\nBA,2\n', {}, "line 2: unexpected end of data"),
    ("a.csv", "s,s\nAB,1\n", {}, "line 1: the header has 's' more than once"),
    ("a.csv", "s,\nAB,1\n", {}, "line 1: the header has an empty name"),
    ("a.csv", "1.5,2\n3,4\n", {}, "line 1: '1.5,2' are values: expected the names"),
    ("a.csv", "s,v\nAB,1\n ,2\n", {"sequence": "s"}, "line 3: s is empty: expected a sequence"),
    ("a.csv", "s,v\nAB,1\nBA,x\n", SV, "line 3: v is 'x': expected a number, as others are; or name the column in"),
    ("a.csv", "s,v\nAB,1\nBA,nan\n", SV, "line 3: v is nan: expected finite"),
    ("a.csv", "s,v\nAB,a\nBA,\n", {"sequence": "s", "label": "v"}, "line 3: v is empty: expected a class"),
    ("a.csv", "smiles,v\nAB,a\n", {"sequence": "smile"}, "no column 'smile': it has smiles, v; did you mean 'smiles'"),
    ("a.csv", "s,v\nAB,a\n", {"label": "v"}, "no column is the sample: name one of s, v"),
    ("a.csv", "s,v\n", {}, "s 0, v 0: expected as many records"),
    ("a.csv.gz", b"not gz", {}, "a damaged file"),
    ("b.parquet", "PAR1 not", {}, "not a Parquet file that can be read"),
]  # fmt: skip
RECORD_ARRAYS = [
    ({"a": np.ones((3, 2)), "b": np.ones((3, 4))}, {}, "which column is what? It has a, b"),
    ({"x": np.array([[1.0], [np.nan]])}, {}, "record 1: x is not finite"),
    ({"x": np.array([[0], [-1]])}, {}, "record 1: x has a whole number outside 0..65535"),
    ({"x": np.ones((2, 3)), "lengths": np.array([0, 3])}, {}, "record 0: lengths is 0: expected 1 to 3"),
    ({"x": np.ones((2, 3)), "present": np.ones((2, 2), bool)}, {}, "present of type bool and shape (2, 2)"),
    ({"x": np.ones((2, 3))}, {"sequence": "x"}, "column x has numbers: expected texts"),
    ({"x": np.ones((2, 3), complex)}, {}, "column x has values of type complex128"),
]


def records_of(name: str, content: str | bytes, tokenizer: Any = None, **roles: Any) -> Callable[[Path], object]:
    return read(read_records, name, content, Columns(**roles), tokenizer)


def parquet_of(*gap: Any) -> Callable[[Path], object]:
    content = pd.DataFrame({"smiles": ["CCO", "CC"], "gap": pd.Series(gap, dtype=object)}).to_parquet()
    return records_of("a.parquet", content, sequence="smiles", conditions="gap")


OTHER_LENGTHS = RawTable("here", {"s": ["AB", "A"], "t": ["B", "AB"]})
RECORDS: list[Case] = [
    *((records_of(name, content, **roles), message) for name, content, roles, message in RECORD_FILES),
    *((saved(read_records, "a.npz", Columns(**roles), **arrays), message) for arrays, roles, message in RECORD_ARRAYS),
    (parquet_of(0.5, None), "row 2: gap is nan: expected finite numbers"),
    (parquet_of("a", None), "row 2: gap is None: expected text"),
    (parquet_of([1.0], [1.0, 2.0]), "row 1: gap is [1.0]: expected text, or an array as long as the others"),
    (read(load, "a.csv", "s\nab\n"), "of 1 records at least 1 must be on each side"),
    (call(Columns, "s", conditions="gap", label="gap"), "column 'gap' has several roles"),
    (call(make_records, RawTable.from_frame(pd.DataFrame({"s": ["CC", None]})), Columns("s")), "the table: row 2: s"),
    (call(record_lengths, make_records(OTHER_LENGTHS, Columns(("s", "t")))), "the lengths of s and t differ"),
]  # fmt: skip


WRONG_TABLES: list[tuple[Any, str]] = [
    (pd.DataFrame({"a": [1.0, np.inf, 2.0]}), "column 'a', row 1: inf: expected a finite number"),
    (pd.DataFrame({"a": [None, None], "b": [1, 2]}), "column 'a': all 2 cells are missing"),
    (pd.DataFrame({"a": ["x", 3, "y"]}, dtype=object), "column 'a', row 1: 3 is of type int: expected text"),
    (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), "column 'a' comes 2 times"),
    (pd.DataFrame({"a": [1]}), "a table of 1 rows"),
    (pd.DataFrame({"a": [1, 1], "b": ["x", "x"]}), "nothing to learn"),
    (pd.DataFrame({3: [1, 2]}), "column name 3: expected texts"),
    (pd.DataFrame({"who": [f"person {i}" for i in range(50)]}), "column 'who': 50 different texts in 50 cells"),
    (pd.DataFrame({"id": range(100), "a": [None] * 100}), "each once, as identifiers have; column 'a': all 100"),
    (pd.DataFrame({"a": [1 + 2j, 3.0]}), "column 'a': type complex128"),
    ([[1, 2]], "a table of type list"),
]
WRONG_CELLS: list[tuple[dict[str, Any], str]] = [
    ({"city": ["Rome", "Pariss"]}, "column 'city', row 1: 'Pariss': expected one of Oslo, Paris, Rome"),
    ({"city": ["Rome", None]}, "column 'city', row 1: missing"),
    ({"count": [1.5, 2]}, "column 'count', row 0: 1.5: expected a whole number"),
    ({"grade": ["low", "x"]}, "column 'grade', row 1: 'x': expected one of low, mid, high"),
    ({"visit": ["1970-01-01 00:01", "soon"]}, "column 'visit', row 1: 'soon': expected a time written as"),
    ({"city": [3, 4]}, "column 'city', row 0: 3: expected a text"),
]
WRONG_WISHES: list[tuple[dict[str, Any], str]] = [
    ({"kinds": {"count": "real"}}, "kinds['count']='real': expected one of number, class"),
    ({"kinds": {"city": "number"}}, "kinds['city']='number': its cells are of type"),
    ({"drop": "city"}, "drop of type str: expected names of columns"),
    ({"drop": ["ctiy"]}, "did you mean 'city'"),
]
TABLE_FILES = [
    (b"", "t.csv: an empty file"),
    (b"a,b\n1,2\n3,4,5\n", "line 3"),
    (b"a,b\n\xff\xfe,2\n", "save the file as UTF-8"),
    (b"a,a\n1,2\n", "t.csv: column 'a' comes 2 times"),
]


def encoded_with(cells: dict[str, Any]) -> Callable[[Path], object]:
    table = some_table()
    return call(infer_columns(table).encode, table.head(2).drop(columns=list(cells)).assign(**cells))


TABLES: list[Case] = [
    *((call(infer_columns, table), message) for table, message in WRONG_TABLES),
    *((encoded_with(cells), message) for cells, message in WRONG_CELLS),
    *((call(infer_columns, some_table(), **wishes), message) for wishes, message in WRONG_WISHES),
    *((read(read_table, "t.csv", content), message) for content, message in TABLE_FILES),
    *((read(TableStream.open, "t.csv", content), message) for content, message in TABLE_FILES),
    (read(lambda path: infer_columns(TableStream.open(path)), "t.csv", b"a,b\n"), "a table of 0 rows"),
    *((read(reader, "t.parquet", b"PAR1 not"), "not a Parquet file") for reader in (read_table, TableStream.open)),
    (call(read_table, "adult", "all"), "part='all': expected one of train, test"),
]


def model_data(kind: str, name: str | None = None, trained_on: str | None = None) -> Callable[[Path], object]:
    def attempt(tmp: Path) -> object:
        write(tmp / "a.txt", "some text " * 100)
        np.savez(tmp / "some.npz", x=pixels(20, 8, 8))
        model = tiny.build(kind)
        if trained_on is not None:
            model.info.card = {"settings": {"data": {"name": trained_on}}}
        return read_model_data(model, None if name is None else tmp / name)

    return attempt


PICKLE = "a pickle, which could run code and is never loaded"
LOADING: list[Case] = [
    (call(load, "nothing-here"), "nothing-here: no such file or folder, nor one of the sets digits, mnist"),
    (read(load, "one.png", PNG), "one.png: not a kind of file that can be read: expected a folder of images"),
    (call(load, "digits", "valid"), "part='valid': expected one of train, validation, test, all"),
    *((read(load, n, pickle.dumps(Bomb())), PICKLE) for n in ("data_batch_1", "x.pkl", "x.pt", "anything")),
    (lambda tmp: load(write(tmp / "data_batch_1", b"x").parent), "of CIFAR-10 take the binary version"),
    (call(load, "adult"), "adult: a table: use bfn.data.read_table('adult')"),
    (call(load, "alarm"), "alarm: a Bayesian network"),
    (call(fetch, "mnits"), "did you mean 'mnist'"),
    *((lambda tmp, n=n: (os.mkfifo(tmp / n), load(tmp / n)), "not a regular") for n in ("p.txt", "p.npy", "p-idx3.gz")),
    (model_data("images", "a.txt"), "is text, and the model is one of images"),
    (model_data("text", "some.npz"), "images of shape (1, 8, 8), and the model's data are (20,)"),
    (model_data("text"), "does not say what it was trained on"),
    (model_data("text", trained_on="text8"), "run bfn data fetch text8"),
    (call(known_part, tiny.build("text"), torch.zeros(1, 8, 8), "top"), "not of images"),
    (call(known_part, tiny.build("images"), torch.zeros(1, 8, 8), "middle"), "part='middle'"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [*IMAGES, *TEXTS, *RECORDS, *TABLES, *LOADING])
def test_errors_are_one_line(cache, tmp_path, attempt: Callable[[Path], object], message: str) -> None:
    refused(re.escape(message), attempt, tmp_path)


@pytest.mark.parametrize(
    "attempt",
    [
        read(read_idx_images, "bomb-idx3.gz", gzip.compress(idx(np.zeros((1000, 28, 28), np.uint8)))),
        saved(read_npz, "bomb.npz", x=np.zeros((2000, 28, 28), np.uint8)),
        read(read_records, "a.csv.gz", gzip.compress(b"s\n" + b"A" * (1 << 23), mtime=0)),
        saved(read_records, "a.npz", x=np.zeros((1 << 17, 8))),
        folder_of(**{f"x{i}": np.zeros((2000, 2000), np.uint8) for i in range(3)}),
    ],
)
def test_files_that_unpack_to_a_very_large_size_are_refused(tmp_path, small_bound, attempt) -> None:
    refused("says that it holds.*more than 65,536 are read only of files that shrank", attempt, tmp_path)
