"""Data in the form that a model takes: levels, classes, what is known; and what does not fit."""

import numpy as np
import pytest
import torch

import tiny
from bfn.data.loading import known_part, read_model_data
from data_files import pixels, write


@pytest.fixture
def pictures(tmp_path):
    x = pixels(20, 8, 8)
    np.savez(tmp_path / "some.npz", x=x, labels=np.arange(20) % 3)
    return tmp_path / "some.npz", x


def test_images_as_floats_with_their_classes(pictures) -> None:
    path, x = pictures
    read = read_model_data(tiny.build("images"), path, "all", 6, seed=1)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:6]
    assert torch.allclose(read.x[:, 0], torch.from_numpy(x)[order] / 127.5 - 1, atol=1e-6)
    assert torch.equal(read.label, order % 3)
    first, rest = read.split(4)
    assert torch.equal(torch.cat([first.x, rest.x]), read.x)
    assert len(first.label) == 4


def test_images_for_a_model_of_two_values_are_binarised(pictures) -> None:
    path, x = pictures
    read = read_model_data(tiny.build("binary"), path, "all")
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(read.x[:, 0], (torch.from_numpy(x)[order] >= 128).long())
    assert read.label is None


def test_text_in_the_model_s_alphabet(tmp_path) -> None:
    model = tiny.build("text")
    read = read_model_data(model, write(tmp_path / "a.txt", "the cat sat on the mat " * 20), "all", 2)
    assert read.x.shape == (2, 20)
    assert model.decode(read.x)[0] == "the cat sat on the m"


def test_known_parts_are_arguments_of_sample() -> None:
    text, images = tiny.build("text"), tiny.build("images")
    known, mask = text.codec.prompt("ab_", 20)
    assert all(line.startswith("ab") for line in text.sample(3, nfe=2, known=known, known_mask=mask).decoded)
    picture = torch.full((1, 8, 8), 0.5)
    x = images.sample(3, nfe=2, **known_part(images, picture, "border")).x
    known = x == 0.5
    assert known[..., :2].all()
    assert known[..., 6:].all()
    assert not known[..., 2:6, 2:6].any()
