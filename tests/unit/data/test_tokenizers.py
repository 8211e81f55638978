"""Tokenizers: what is encoded comes back, what is outside the vocabulary is told with its position; all are stored."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bfn
from bfn.core import plain
from bfn.core.errors import UserError
from bfn.data.loading import load
from bfn.data.tokenizers import AMINO_ACIDS, PATTERNS, Alphabet, Tokenizer, TokenizerFile, TokenList, make_tokenizer

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
SALT = "[Na+].[Cl-].C[C@@H](Br)/C=C\\Cl%12.c1cc2ccccc2[nH]1"
SMILES = TokenList.from_texts([ASPIRIN, SALT], "smiles")


def byte_pairs(unknown: str | None = None, **extra: object) -> str:
    """A tokenizer file of byte pairs over a, b, c and ab, abc."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4} | ({unknown: 5} if unknown else {})
    model = {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
        "merges": ["a b", "ab c"],
    }  # fmt: skip
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", **parts, "added_tokens": [], **extra, "model": model})


@given(st.lists(st.sampled_from(SMILES.tokens), max_size=20).map("".join))
@settings(max_examples=50)
def test_text_of_known_tokens_comes_back(text: str) -> None:
    for tokenizer in (SMILES, TokenList(SMILES.tokens)):
        try:
            classes = tokenizer.encode(text)
        except UserError:  # tokens that meet may read as another one, such as C and l
            continue
        assert classes.dtype == torch.int64
        assert tokenizer.decode(classes) == [text]


@given(st.text(min_size=1).filter(lambda text: len(set(text)) > 1))
def test_characters_and_words_come_back(text: str) -> None:
    alphabet = Alphabet.from_texts([text])
    assert alphabet.decode(alphabet.encode(text)) == [text]
    pieces = TokenList.from_texts([text, "a b"], "words")
    assert pieces.decode(pieces.encode(text)) == [text]


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
    assert SMILES.pattern == PATTERNS["smiles"]
    assert TokenList(("C", "O"), "smiles") == TokenList(("C", "O"), PATTERNS["smiles"])


def test_padding_is_no_part_of_a_text() -> None:
    classes = torch.zeros(2, 6, dtype=torch.int64)
    present = torch.zeros(2, 6, dtype=torch.bool)
    for row, text in enumerate(("CCO", "Oc1")):
        codes = SMILES.encode(text)
        classes[row, : len(codes)], present[row, : len(codes)] = codes, True
    assert SMILES.decode(classes, present) == ["CCO", "Oc1"]
    assert SMILES.decode(classes[0], present[0]) == ["CCO"]
    assert len(SMILES.decode(classes)[0]) > 3


def test_a_prompt_of_tokens() -> None:
    known, mask = SMILES.encode_prompt("[Na+]_Br", 5)
    assert mask.tolist() == [True, False, True, False, False]
    assert [SMILES.tokens[k] for k in known[mask].tolist()] == ["[Na+]", "Br"]


def test_a_tokenizer_file_is_read_without_its_truncation_padding_and_special_tokens(tmp_path) -> None:
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


def test_a_list_of_tokens_in_a_file(tmp_path) -> None:
    (tmp_path / "tokens.txt").write_text("Ala\nGly\nA\n")
    assert make_tokenizer(str(tmp_path / "tokens.txt"), []) == TokenList(("Ala", "Gly", "A"))


@pytest.mark.parametrize(
    "tokenizer", [AMINO_ACIDS, SMILES, TokenizerFile(byte_pairs())], ids=["characters", "tokens", "file"]
)
def test_a_tokenizer_is_stored_with_a_model(tokenizer: Tokenizer, tmp_path) -> None:
    stored = json.loads(json.dumps(plain.to_plain(tokenizer)))
    assert plain.from_plain(Tokenizer, stored, "tokenizer") == tokenizer
    info = bfn.ModelInfo(tokenizer=tokenizer)
    model = bfn.BFN(nn.Linear(2, 2), bfn.DiscreteFlow(len(tokenizer)), "logits", (4,), info)
    model.save(tmp_path)
    loaded = bfn.load(tmp_path, network=nn.Linear(2, 2))
    assert loaded.info.text_tokenizer == tokenizer
    assert loaded.form == "text"
    x = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    assert loaded.decode(x) == tokenizer.decode(x)
    assert loaded.decode(x, present=x > 1) == tokenizer.decode(x, x > 1)
    piece = tokenizer.pieces[2]
    known, mask = loaded.codec.prompt(f"_{piece}", 4)
    assert (known.tolist(), mask.tolist()) == ([0, 2, 0, 0], [False, True, False, False])


def test_characters_are_stored_as_an_alphabet() -> None:
    info = bfn.ModelInfo(text_tokenizer=AMINO_ACIDS)
    assert (info.alphabet, info.tokenizer) == (AMINO_ACIDS.symbols, None)
    assert info.text_tokenizer == AMINO_ACIDS
    assert bfn.ModelInfo(text_tokenizer=SMILES).tokenizer == SMILES
    assert bfn.ModelInfo().text_tokenizer is None


def test_the_parts_of_joint_data_have_tokenizers_of_their_own(tmp_path) -> None:
    flow = bfn.JointFlow(chain=bfn.DiscreteFlow(20), charge=bfn.ContinuousFlow(0.02))
    info = bfn.ModelInfo(part_tokenizers={"chain": AMINO_ACIDS})
    predicts, shape = {"chain": "logits", "charge": "data"}, {"chain": (3,), "charge": ()}
    bfn.BFN(nn.Linear(2, 2), flow, predicts, shape, info).save(tmp_path)
    model = bfn.load(tmp_path, network=nn.Linear(2, 2))
    x = {"chain": torch.tensor([[0, 1, 2], [3, 4, 0]]), "charge": torch.tensor([0.5, 1.5])}
    decoded = model.decode(x)
    assert decoded["chain"] == ["ACD", "EFA"]
    assert decoded["charge"].tolist() == [0.5, 1.5]
    present = {"chain": torch.tensor([[True] * 3, [True, True, False]])}
    assert model.decode(x, present)["chain"] == ["ACD", "EF"]


def test_a_long_text_by_tokens(tmp_path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("one two, one three. " * 50)
    text = load(path, "all", tokenizer="words")
    assert text.n_classes == 6
    assert text.tokenizer.decode(text.tiles(8)[0]) == ["one two, one three"]


def test_a_prompt_with_the_sign_for_the_unknown_in_its_own_text():
    tokenizer = Alphabet("_ab")
    classes, mask = tokenizer.encode_prompt("a_?b", 5, unknown="?")
    assert classes.tolist() == [1, 0, 0, 2, 0]
    assert mask.tolist() == [True, True, False, True, False]
