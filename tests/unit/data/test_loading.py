import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.data import loading
from bfn.data.images import Images
from bfn.data.loading import Part, is_at_hand, load, names
from bfn.data.records import Columns
from bfn.data.sources import SOURCES
from bfn.data.table_files import read_table
from bfn.data.text import Text
from bfn.data.tokenizers import TEXT8
from data_files import idx, pixels, write


@pytest.fixture
def home(cache):
    """A cache directory with small sets in it."""
    for name, shape in (("mnist", (28, 28)), ("cifar10", (3, 32, 32))):
        (cache / name).mkdir(parents=True)
        for part, n in (("train", 100), ("test", 20)):
            np.save(cache / name / f"{part}-images.npy", pixels(n, *shape))
            np.save(cache / name / f"{part}-labels.npy", np.arange(n, dtype=np.uint8) % 10)
    write(cache / "text8" / "text8", " some words with one space and no end" * 100)
    molecules = "".join(f"C{'C' * (i % 7)}O,0.{20 + i % 9},1.5\n" for i in range(100))
    write(cache / "qm9" / "qm9.csv", f"smiles,gap,dipole\n{molecules}")
    for folder in cache.iterdir():
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        write(folder / "manifest.json", json.dumps({"files": {}, "sizes": sizes}))
    return cache


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_standard_images_keep_their_test_part(home, name, shape):
    parts = {part: load(name, part) for part in get_args(Part)}
    assert {part: len(images) for part, images in parts.items()} == dict(train=95, validation=5, test=20, all=120)
    stored = np.load(home / name / "test-images.npy")
    assert torch.equal(parts["test"].x.flatten(), torch.from_numpy(stored.ravel()))
    assert torch.equal(parts["all"].x[100:], parts["test"].x)
    assert all(images.data_shape == shape for images in parts.values())
    assert (parts["validation"].n_classes, len(parts["train"].class_names)) == (10, 10)


def test_text8_is_divided_90_5_5_in_order(home):
    train, validation, test, whole = (load("text8", part) for part in get_args(Part))
    assert [len(part) for part in (train, validation, test)] == [3330, 185, 185]
    assert torch.equal(torch.cat([part.to_classes() for part in (train, validation, test)]), whole.to_classes())
    assert train.tokenizer == TEXT8  # though the file does not hold every letter
    # As many zeros as the real text8 has characters, in the memory of one: the standard division.
    whole = Text(torch.zeros(1, dtype=torch.uint8).expand(100_000_000), torch.arange(1), TEXT8)
    sizes = [len(loading._take_part(whole, part)) for part in ("train", "validation", "test")]
    assert sizes == [90_000_000, 5_000_000, 5_000_000]


def test_qm9_is_strings_with_their_gap_unless_other_columns_are_asked_for(home):
    train, validation, test = (load("qm9", part) for part in ("train", "validation", "test"))
    assert [len(part) for part in (train, validation, test)] == [90, 5, 5]
    assert train.source == "qm9"
    assert (train.roles.samples, train.roles.conditions) == (("smiles",), ("gap",))
    assert train.columns["smiles"].tokenizer.tokens == ("C", "O")
    other = load("qm9", "all", columns=Columns(sequence="smiles", conditions="dipole"))
    assert other.columns["dipole"].values.tolist() == [1.5] * 100


def test_digits_as_scikit_learn_has_them_divided_at_random():
    train, validation, test, digits = (load("digits", part) for part in get_args(Part))
    assert [len(part) for part in (train, validation, test)] == [1617, 90, 90]
    assert torch.equal(load("digits").x, train.x)
    assert sum(part.x.sum() for part in (train, validation, test)) == digits.x.sum()
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.levels, digits.class_names) == (17, tuple("0123456789"))
    assert torch.equal(digits.to_float(), digits.x.float() / 8 - 1)


def test_a_note_in_the_manifest_is_a_warning(home, recwarn):
    assert load("text8").note == ""
    assert not recwarn
    for name in ("text8", "mnist"):
        path = home / name / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "only a piece"}))
        assert load(name, "test").note == "only a piece"
        warning = recwarn.pop()
        assert (str(warning.message), warning.filename) == (f"{name}: only a piece", __file__)


def test_names_win_over_paths_only_when_bare(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mnist", "a text, not digits" * 10)
    assert isinstance(load("mnist"), Images)
    assert isinstance(load("./mnist"), Text)
    assert isinstance(load(tmp_path / "mnist"), Text)


def test_paths_of_every_kind(tmp_path):
    x = pixels(40, 8, 8)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(40) % 4)
    write(tmp_path / "x-idx3-ubyte", idx(x))
    (tmp_path / "images").mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "images" / f"{number:02d}.png")
    write(tmp_path / "cifar" / "data_batch_1.bin", bytes(3073 * 40))
    reference = load(tmp_path / "x.npy", "test")
    for name in ("x.npz", "x-idx3-ubyte", "images"):
        images = load(str(tmp_path / name), "test", progress=False)
        assert torch.equal(images.x, reference.x)
    assert load(tmp_path / "x.npz").n_classes == 4
    assert load(tmp_path / "cifar").data_shape == (3, 32, 32)
    assert [len(load(tmp_path / "x.npy", part)) for part in get_args(Part)] == [36, 2, 2, 40]
    np.save(tmp_path / "one.npy", x[:1])
    assert len(load(tmp_path / "one.npy", "all")) == 1
    text = write(tmp_path / "t.txt", "some words" * 10)
    assert load(text).n_classes == len(set("some words"))
    assert load(text, tokenizer=TEXT8).n_classes == 27


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name == "digits" or not SOURCES[name].is_table])
def test_the_real_sets_where_they_are_cached(name):
    if not is_at_hand(name):
        pytest.skip(f"{name} is not in the cache")
    whole = load(name, "all")
    if isinstance(whole, Text):
        assert len(whole) == (74_000_000 if whole.note else 100_000_000)
        assert TEXT8.decode(whole[:30].to_classes()) == [" anarchism originated as a ter"]
        counts = torch.bincount(whole[:10_000_000].to_classes(), minlength=27).double()
        frequency = counts / counts.sum()
        entropy = -(frequency * frequency.log2()).sum()
        assert 4.0 < entropy < 4.2  # bits a letter of English with its spaces
        return
    sizes = {"digits": 1797, "mnist": 70_000, "fashion-mnist": 70_000, "cifar10": 60_000}
    assert len(whole) == sizes[name]
    assert whole.n_classes == 10
    means = {"digits": 4.884 / 16, "mnist": 0.1309, "fashion-mnist": 0.2862, "cifar10": 0.4739}
    assert whole.x[::7].double().mean() / (whole.levels - 1) == pytest.approx(means[name], abs=0.003)


@pytest.mark.long
@pytest.mark.parametrize(("name", "rows"), [("adult", (32_561, 16_281)), ("magic", (17_118, 1902))])
def test_the_real_tables_where_they_are_cached(name, rows):
    if not is_at_hand(name):
        pytest.skip(f"{name} is not in the cache")
    train, test = (read_table(name, part) for part in ("train", "test"))
    assert (len(train), len(test)) == rows
    assert list(train.columns) == list(test.columns)
    assert not train.isna().any(axis=None)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux shows a process's memory as a file")
def test_a_file_that_opens_and_cannot_be_read_is_named():
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        load(Path("/proc/self/mem"))
