import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bfn.core.errors import UserError
from bfn.data.text import read_text
from bfn.data.tokenizers import TEXT8, Alphabet
from data_files import write


def test_text8_alphabet_is_space_then_letters():
    assert len(TEXT8) == 27
    assert TEXT8.encode(" az").tolist() == [0, 1, 26]
    assert TEXT8.decode(torch.arange(27)) == [" abcdefghijklmnopqrstuvwxyz"]


@given(st.text(min_size=2, max_size=40).filter(lambda text: len(set(text)) > 1))
def test_decode_inverts_encode(text):
    alphabet = Alphabet("".join(sorted(set(text))))
    classes = alphabet.encode(text)
    assert classes.dtype == torch.int64
    assert alphabet.decode(torch.stack([classes, classes])) == [text, text]


@pytest.mark.parametrize("text", ["hello\nworld", "h\u00e9llo w\u00f6rld \u4e16\u754c", "\U0001f600 ok \U0001f600"])
def test_found_alphabet_reads_the_file_back(tmp_path, text):
    read = read_text(write(tmp_path / "t.txt", text))
    assert read.tokenizer.symbols == "".join(sorted(set(text)))
    assert read.n_classes == len(set(text))
    assert len(read) == len(text)
    assert read.tokenizer.decode(read.to_classes()) == [text]


def test_more_symbols_than_a_byte_holds(tmp_path):
    text = "".join(chr(0x4E00 + i) for i in range(300))
    read = read_text(write(tmp_path / "t.txt", text))
    assert read.n_classes == 300
    assert read.codes.dtype == torch.int16
    assert read.tokenizer.decode(read.to_classes()) == [text]


def test_a_given_alphabet_fixes_the_classes(tmp_path):
    read = read_text(write(tmp_path / "t", "b a"), TEXT8)
    assert read.to_classes().tolist() == [2, 0, 1]
    wide = read_text(write(tmp_path / "u", "\u00e9a"), Alphabet("a\u00e9x"))
    assert wide.to_classes().tolist() == [1, 0]
    narrow = read_text(write(tmp_path / "v", "ax"), Alphabet("a\u00e9x"))
    assert narrow.to_classes().tolist() == [0, 2]


def test_a_foreign_symbol_is_found_beyond_the_first_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("bfn.data.text._PIECE", 8)
    with pytest.raises(UserError) as caught:
        read_text(write(tmp_path / "t", "a" * 19 + "!b?"), TEXT8)
    assert "'!' at byte 19" in str(caught.value)


def test_windows_are_random_crops(tmp_path, generator):
    alphabet = Alphabet("".join(map(chr, range(32, 127))))
    text = alphabet.symbols * 3
    read = read_text(write(tmp_path / "t", text), alphabet)
    windows = read.windows(2000, 10, generator)
    assert windows.shape == (2000, 10)
    assert windows.dtype == torch.int64
    assert ((windows[:, 1:] - windows[:, :-1]) % 95 == 1).all()  # neighbours in the text
    assert set(windows[:, 0].tolist()) == set(range(95))
    again = read.windows(2000, 10, torch.Generator().manual_seed(0))
    assert torch.equal(windows, again)


def test_every_start_is_reached_and_equally_often(tmp_path, generator):
    read = read_text(write(tmp_path / "t", "abcdef"), TEXT8)
    starts = read.windows(40_000, 3, generator)[:, 0].bincount(minlength=6)[1:5]
    # 4 starts, 10,000 expected of each, standard deviation 87: 5 deviations are passed once in 400,000 seeds
    assert starts.sum() == 40_000
    assert (starts - 10_000).abs().max() < 5 * 87


def test_tiles_are_fixed_and_side_by_side(tmp_path):
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


def test_windows_are_quick(tmp_path, generator):
    read = read_text(write(tmp_path / "t", "the quick brown fox " * 50_000), TEXT8)
    read.windows(64, 256, generator)
    start = time.perf_counter()
    for _ in range(20):
        read.windows(64, 256, generator)
    assert (time.perf_counter() - start) / 20 < 0.02  # 0.25 ms measured; a Python loop over characters takes longer
