"""Samples for people: texts, notebooks, files and decoding, through the codec."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
import tiny


def joint() -> bfn.BFN:
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.1), kind=bfn.DiscreteFlow(3))
    return bfn.BFN(lambda x, t: x, flow, {"x": "data", "kind": "logits"}, {"x": (4, 3), "kind": (4,)})


@pytest.mark.parametrize(
    ("make", "solver", "text"),
    [
        (lambda: tiny.build("images"), "auto", "3 images of 1 x 8 x 8, auto"),
        (lambda: tiny.build("text"), "auto", "3 texts of 20, auto"),
        (lambda: tiny.build("vectors"), "auto", "3 samples of 2, auto"),
        (joint, {"x": "fast-ode", "kind": "bfn-solver1"},
         "3 samples of x 4 x 3, kind 4, x: fast-ode, kind: bfn-solver1"),
    ],
)  # fmt: skip
def test_the_text_of_samples(make, solver, text: str) -> None:
    assert repr(make().sample(3, solver, 2)) == f"Samples({text}, 2 calls)"


def test_notebooks_show_pictures_strings_and_tables() -> None:
    shown = {kind: tiny.build(kind).sample(3, nfe=2)._repr_html_() for kind in ("images", "text", "vectors")}
    assert '<img src="data:image/png;base64,' in shown["images"]
    text = tiny.build("text").sample(3, nfe=2, seed=1)
    assert all(line in text._repr_html_() for line in text.decoded)
    assert "<pre>" in shown["vectors"]
    assert "<table" in bfn.load("adult").sample(2, nfe=2)._repr_html_()


@pytest.mark.parametrize(
    ("kind", "suffixes"),
    [("images", [".png", ".npz"]), ("text", [".txt"]), ("molecules", [".txt"]), ("vectors", [".npz", ".csv"])],
)
def test_samples_are_written_in_the_formats_of_their_kind(kind: str, suffixes: list[str], tmp_path: Path) -> None:
    model = tiny.build(kind)
    out = model.sample(3, nfe=2, seed=0)
    names = () if model.info.classes is None else model.info.classes.names
    files = model.codec.write(tmp_path / "out", out.x, out.present, out.label, names)
    assert [file.suffix for file in files] == suffixes
    if kind == "images":
        assert np.array_equal(np.asarray(Image.open(files[0])), np.asarray(model.codec.picture(out.x)))
        assert np.load(files[1])["labels"].tolist() == out.label.tolist()
    elif kind == "vectors":
        assert np.allclose(np.loadtxt(files[1], delimiter=",", skiprows=1), out.x.numpy())
    else:
        assert files[0].read_text(encoding="utf-8").splitlines() == out.decoded


def test_a_picture_shows_samples_and_predictions() -> None:
    binary, text = tiny.build("binary"), tiny.build("text")
    out = binary.sample(4, nfe=2, seed=0)
    certain = torch.nn.functional.one_hot(out.x, 2).float()
    assert np.array_equal(np.asarray(binary.codec.picture(out.x)), np.asarray(binary.codec.picture(certain)))
    words = text.sample(2, nfe=2, seed=0)
    picture = text.codec.picture(words.prediction)
    assert picture.size == text.codec.picture(words.x).size
    assert tiny.build("vectors").codec.picture(torch.zeros(2, 2)) is None


def test_padding_is_not_decoded() -> None:
    """With samples it is known; in a bare tensor of a model with lengths, class 0 at the end counts as padding."""
    model = tiny.build("molecules")
    out = model.sample(4, nfe=2, lengths=[2, 3, 4, 6], seed=0)
    assert [len(text) for text in out.decoded] == [2, 3, 4, 6]
    assert model.decode(out) == out.decoded == model.decode(out.x, out.present)
    bare = torch.tensor([[1, 2, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0]])
    assert model.decode(bare) == ["NO=", "CC", "CNCN"]  # the shortest sample has length 2
    assert tiny.build("text").decode(torch.zeros(1, 3, dtype=torch.long)) == ["   "]


def test_prompts_are_known_data() -> None:
    known, mask = tiny.build("text").codec.prompt("a_c", 5)
    assert known[mask].tolist() == [1, 3]
    assert mask.tolist() == [True, False, True, False, False]
