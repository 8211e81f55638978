"""Tokenizers: what is encoded comes back, what is outside the vocabulary is told with its position; all are stored."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bfn
from bfn.core import plain
from bfn.data.tokenizers import AMINO_ACIDS, Alphabet, Text, Tokenizer, TokenizerFile, TokenList, make_tokenizer

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
SALT = "[Na+].[Cl-].C[C@@H](Br)/C=C\\Cl%12.c1cc2ccccc2[nH]1"
SMILES = TokenList.from_texts([ASPIRIN, SALT], "smiles")


PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")


def byte_pairs(**extra: object) -> str:
    """A tokenizer file of byte pairs over a, b, c and ab, abc."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    model = {
        "type": "BPE", "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": ["a b", "ab c"],
    } | dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))  # fmt: skip
    return json.dumps({"version": "1.0", **dict.fromkeys(PARTS), "added_tokens": [], **extra, "model": model})


@given(st.text(min_size=1).filter(lambda text: len(set(text)) > 1))
def test_characters_and_words_come_back(text: str) -> None:
    for tokenizer in (Alphabet.from_texts([text]), TokenList.from_texts([text, "a b"], "words")):
        classes = tokenizer.encode(text)
        assert tokenizer.decode(torch.stack([classes, classes])) == [text, text]


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, unique=True), st.text("ab", max_size=12))
def test_the_longest_token_is_taken(tokens: list[str], text: str) -> None:
    tokenizer = TokenList(("a", "b", *[token for token in tokens if len(token) > 1]))
    position = 0
    for number in tokenizer.encode(text).tolist():
        token = tokenizer.tokens[number]
        assert text.startswith(token, position)
        assert not any(text.startswith(longer, position) for longer in tokenizer.tokens if len(longer) > len(token))
        position += len(token)
    assert position == len(text)


def test_smiles_are_cut_into_atoms_bonds_and_rings() -> None:
    pieces = [SMILES.tokens[k] for k in SMILES.encode(SALT).tolist()]
    assert pieces[:4] == ["[Na+]", ".", "[Cl-]", "."]
    assert {"[C@@H]", "Br", "/", "\\", "Cl", "%12", "[nH]"} <= set(pieces)
    assert "".join(pieces) == SALT


def test_padding_is_no_part_of_a_text() -> None:
    classes, present = Text(SMILES).encode(["CCO", "O"])
    assert SMILES.decode(classes, present) == ["CCO", "O"]
    assert SMILES.decode(classes[1], present[1]) == ["O"]
    assert len(SMILES.decode(classes)[1]) > 1


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "unknown", "expected"),
    [(SMILES, "[Na+]_Br", "_", ["[Na+]", None, "Br"]), (Alphabet("_ab"), "a_?b", "?", ["a", "_", None, "b"])],
)
def test_a_prompt_fixes_its_tokens(tokenizer: Tokenizer, prompt: str, unknown: str, expected: list[str | None]) -> None:
    classes, mask = tokenizer.encode_prompt(prompt, 5, unknown)
    known = [tokenizer.pieces[k] if fixed else None for k, fixed in zip(classes.tolist(), mask.tolist(), strict=True)]
    assert known == [*expected, *[None] * (5 - len(expected))]


def test_files_are_lists_of_tokens_or_tokenizers_without_their_truncation_padding_and_special_tokens(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "a",
    }  # fmt: skip
    path.write_text(byte_pairs(truncation=cut, padding=pad))
    tokenizer = make_tokenizer(str(path), [])
    assert tokenizer.pieces == ("a", "b", "c", "ab", "abc")
    assert tokenizer.encode("abcabbac").tolist() == [4, 3, 1, 0, 2]
    (tmp_path / "tokens.txt").write_text("Ala\nGly\nA\n")
    assert make_tokenizer(str(tmp_path / "tokens.txt"), []) == TokenList(("Ala", "Gly", "A"))


@pytest.mark.parametrize(
    "tokenizer", [AMINO_ACIDS, SMILES, TokenizerFile(byte_pairs())], ids=["characters", "tokens", "file"]
)
def test_a_tokenizer_is_stored_with_a_model(tokenizer: Tokenizer, tmp_path) -> None:
    stored = json.loads(json.dumps(plain.to_plain(tokenizer)))
    assert plain.from_plain(Tokenizer, stored, "tokenizer") == tokenizer
    info = bfn.ModelInfo(tokenizer=tokenizer)
    bfn.BFN(nn.Linear(2, 2), bfn.DiscreteFlow(len(tokenizer)), "logits", (4,), info).save(tmp_path)
    loaded = bfn.load(tmp_path, network=nn.Linear(2, 2))
    assert (loaded.info.text_tokenizer, loaded.form) == (tokenizer, "text")
    x = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    assert loaded.decode(x, present=x > 1) == tokenizer.decode(x, x > 1)
    known, mask = loaded.codec.prompt(f"_{tokenizer.pieces[2]}", 4)
    assert (known.tolist(), mask.tolist()) == ([0, 2, 0, 0], [False, True, False, False])


def test_the_parts_of_joint_data_have_tokenizers_of_their_own(tmp_path) -> None:
    flow = bfn.JointFlow(chain=bfn.DiscreteFlow(20), charge=bfn.ContinuousFlow(0.02))
    info = bfn.ModelInfo(part_tokenizers={"chain": AMINO_ACIDS})
    predicts, shape = {"chain": "logits", "charge": "data"}, {"chain": (3,), "charge": ()}
    bfn.BFN(nn.Linear(2, 2), flow, predicts, shape, info).save(tmp_path)
    model = bfn.load(tmp_path, network=nn.Linear(2, 2))
    x = {"chain": torch.tensor([[0, 1, 2], [3, 4, 0]]), "charge": torch.tensor([0.5, 1.5])}
    decoded = model.decode(x, {"chain": torch.tensor([[True] * 3, [True, True, False]])})
    assert decoded["chain"] == ["ACD", "EF"]
    assert decoded["charge"].tolist() == [0.5, 1.5]
