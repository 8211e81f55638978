import pytest
import torch

from bfn.data.text import read_text
from bfn.data.tokenizers import TEXT8, Alphabet
from data_files import write
from messages import refused

MANY = "".join(chr(0x4E00 + i) for i in range(300))  # more symbols than a byte holds


@pytest.mark.parametrize(
    ("text", "stored"), [("hello\nworld", torch.uint8), ("h\u00e9llo \U0001f600", torch.uint8), (MANY, torch.int16)]
)
def test_found_alphabet_reads_the_file_back(tmp_path, text, stored):
    read = read_text(write(tmp_path / "t.txt", text))
    assert read.tokenizer.symbols == "".join(sorted(set(text)))
    assert (read.n_classes, len(read), read.codes.dtype) == (len(set(text)), len(text), stored)
    assert read.tokenizer.decode(read.to_classes()) == [text]


def test_a_given_alphabet_fixes_the_classes(tmp_path):
    wide = Alphabet("a\u00e9x")
    for text, alphabet, classes in (("b a", TEXT8, [2, 0, 1]), ("\u00e9a", wide, [1, 0]), ("ax", wide, [0, 2])):
        assert read_text(write(tmp_path / "t", text), alphabet).to_classes().tolist() == classes


def test_a_foreign_symbol_is_found_beyond_the_first_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("bfn.data.text._PIECE", 8)
    refused("'!' at byte 19", read_text, write(tmp_path / "t", "a" * 19 + "!b?"), TEXT8)


def test_windows_are_random_crops_that_are_equally_frequent(tmp_path, generator):
    alphabet = Alphabet("".join(map(chr, range(32, 127))))
    text = alphabet.symbols * 3
    read = read_text(write(tmp_path / "t", text), alphabet)
    windows = read.windows(2000, 10, generator)
    assert (windows.shape, windows.dtype) == ((2000, 10), torch.int64)
    assert ((windows[:, 1:] - windows[:, :-1]) % 95 == 1).all()  # neighbours in the text
    assert set(windows[:, 0].tolist()) == set(range(95))
    assert torch.equal(windows, read.windows(2000, 10, torch.Generator().manual_seed(0)))
    # 4 starts, 10,000 expected of each, standard deviation 87: 5 deviations are passed once in 400,000 seeds
    starts = read_text(write(tmp_path / "u", "abcdef"), TEXT8).windows(40_000, 3, generator)[:, 0].bincount(minlength=6)
    assert starts[1:5].sum() == 40_000
    assert (starts[1:5] - 10_000).abs().max() < 5 * 87


def test_tiles_are_fixed_and_side_by_side(tmp_path):
    words = read_text(write(tmp_path / "w", "one two, one three. " * 5), "words")
    assert words.tokenizer.decode(words.tiles(8)[0]) == ["one two, one three"]
    read = read_text(write(tmp_path / "t", "abcdefghijk"), TEXT8)
    assert TEXT8.decode(read.tiles(3)) == ["abc", "def", "ghi"]
    assert TEXT8.decode(read.tiles(2, 2)) == ["ab", "ef"]
    assert TEXT8.decode(read.tiles(11)) == ["abcdefghijk"]


def test_split_holds_out_the_end_without_a_copy(tmp_path):
    read = read_text(write(tmp_path / "t", "abcdefghij"), TEXT8)
    rest, end = read.split(0.3)
    assert TEXT8.decode(rest.to_classes()) == ["abcdefg"]
    assert TEXT8.decode(end.to_classes()) == ["hij"]
    assert end.codes.data_ptr() == read.codes.data_ptr() + 7
    assert [len(part) for part in read.split(4)] == [6, 4]


def test_the_file_stays_on_disk_and_unchanged(tmp_path):
    path = write(tmp_path / "t", "abc" * 1000)
    path.chmod(0o444)
    read = read_text(path, TEXT8)
    read.codes[0] = ord("z")  # the mapping is private
    assert path.read_bytes() == b"abc" * 1000
