import numpy as np
import pytest
import torch

from bfn import data
from bfn._utils.pieces import derived_seed
from bfn.core.conditions import Classes
from bfn.core.info import ModelInfo
from bfn.kinds.discretised import quantise
from bfn.training.building import open_recipe_data as open_source
from bfn.training.source import ImageSource, Position, TextSource, run_rows


def taken(source, seed, start, count):
    return source.take(run_rows(seed, start, count, len(source)), Position(seed, start))


def text(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_text(content)
    return data.read_text(path)


def test_every_item_comes_once_an_epoch_in_an_order_that_only_the_seed_decides():
    def items(seed, start, count):
        return run_rows(seed, start, count, 10).tolist()

    assert sorted(items(0, 0, 10)) == sorted(items(0, 10, 10)) == list(range(10))
    assert items(0, 0, 10) != items(0, 10, 10)
    assert items(0, 0, 10) != items(1, 0, 10)
    assert items(0, 0, 25) == items(0, 0, 7) + items(0, 7, 11) + items(0, 18, 7)


@pytest.mark.parametrize(("n", "length"), [(26, 4), (26, 13), (26, 26), (26, 25), (24, 4)])
def test_text_windows_are_stretches_of_the_text_without_overlap_in_an_epoch(tmp_path, n, length):
    content = "abcdefghijklmnopqrstuvwxyz"[:n]
    source = TextSource(text(tmp_path, content), length)
    per_epoch = max(1, n // length - 1)
    for epoch in range(5):
        x, conditions = taken(source, 3, epoch * per_epoch, per_epoch)
        lines = source.text.tokenizer.decode(x)
        assert conditions == {}
        assert all(line in content for line in lines)
        assert len(set("".join(lines))) == per_epoch * length
    first, _ = source.first(2)
    assert source.text.tokenizer.decode(first)[0] == content[:length]


def test_images_come_as_floats_or_classes_with_their_labels(tmp_path):
    rng = np.random.default_rng(0)
    images = data.from_array(rng.integers(0, 256, (40, 4, 4)).astype(np.uint8), np.arange(40) % 5)
    floats, classes = ImageSource(images, True, True), ImageSource(images, False, False)
    x, conditions = taken(floats, 0, 0, 40)
    codes, none = taken(classes, 0, 0, 40)
    torch.testing.assert_close(x, codes.float() / 127.5 - 1)
    assert none == {}
    assert conditions["label"].bincount().tolist() == [8] * 5
    assert floats.facts.classes == Classes.equal(5)
    assert floats.facts.value_range == (-1, 1)
    assert classes.facts == ModelInfo()
    assert classes.n_values == 256


@pytest.fixture
def gradient(tmp_path):
    """Forty pictures that hold each of the 256 levels once, as a file."""
    path = tmp_path / "images.npy"
    np.save(path, np.tile(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (40, 1, 1)))
    return str(path)


@pytest.mark.parametrize("levels", [2, 16, 256])
def test_values_at_centres_are_those_of_a_discretised_head(gradient, levels):
    source = open_source({"name": gradient, "levels": levels, "centres": True}, "continuous", "train")
    x, _ = source.first(1)
    ramp = torch.arange(256).view(1, 1, 16, 16) / 255 * 2 - 1
    torch.testing.assert_close(x, quantise(ramp, levels), rtol=0, atol=1e-6)
    assert len(x.unique()) == source.n_values == levels


def test_dynamic_binarisation_is_fresh_at_each_draw_and_the_same_however_a_batch_is_cut(gradient):
    config = {"name": gradient, "binarise": "dynamic"}
    source = open_source(config, "discrete", "train")
    n = len(source.images)
    x, _ = taken(source, 0, 0, 60 * n)
    assert source.n_values == 2
    assert torch.equal(x[5:9], taken(source, 0, 5, 4)[0])
    assert not torch.equal(x[:n].sum(0), x[n : 2 * n].sum(0))
    assert not torch.equal(x[:4], taken(source, 1, 0, 4)[0])
    p = torch.arange(256).view(1, 16, 16) / 255
    z = (x.double().mean(0) - p) / (p * (1 - p) / len(x)).sqrt().clamp(min=1e-9)
    assert float(z.abs().max()) < 5
    assert torch.equal(source.first(3)[0], source.first(5)[0][:3])


def test_images_are_mirrored_at_random_by_their_number_in_the_run():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 4, 4)).astype(np.uint8)
    plain, flipped = (ImageSource(data.from_array(pixels), True, False, flip=flip) for flip in (False, True))
    x, y = (taken(source, 7, 0, 40)[0] for source in (plain, flipped))
    mirrored = torch.tensor([bool(derived_seed(7, "flip", number) & 1) for number in range(40)])
    assert torch.equal(y, torch.where(mirrored[:, None, None, None], x.flip(-1), x))
    assert 10 < int(mirrored.sum()) < 30
    assert torch.equal(taken(flipped, 7, 5, 4)[0], y[5:9])
    assert torch.equal(flipped.first(9)[0], plain.first(9)[0])


def test_the_whole_data_are_all_but_the_test_part(images):
    def rows(part, **options):
        source = open_source({"name": str(images), **options}, "continuous", part)
        return {tuple(image.flatten().tolist()) for image in source.first(1000)[0]}

    assert rows("train", whole=True) == rows("train") | rows("validation")
    assert rows("validation", whole=True) == rows("validation")
    assert not rows("train", whole=True) & rows("test", whole=True)
