import numpy as np
import torch

from bfn.data.images import Images, concatenate, from_array
from data_files import pixels

# Values


def test_to_float_spans_minus_one_to_one_at_every_level():
    for levels in (2, 17, 256):
        x = torch.arange(levels, dtype=torch.uint8).view(levels, 1, 1, 1)
        values = Images(x, levels=levels).to_float()
        assert values.dtype == torch.float32
        torch.testing.assert_close(values.flatten(), torch.linspace(-1, 1, levels), rtol=0, atol=2e-7)
        assert values[0] == -1
        assert values[-1] == 1


def test_indexing_takes_labels_along():
    images = Images(
        torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.arange(6) % 3, class_names=("a", "b", "c")
    )
    chosen = images[torch.tensor([4, 1])]
    assert chosen.to_classes().flatten().tolist() == [4, 1]
    assert chosen.to_classes().dtype == torch.int64
    assert chosen.labels.tolist() == [1, 1]
    assert chosen.n_classes == images.n_classes == 3
    assert chosen.data_shape == (1, 1, 1)
    assert len(images[:4]) == 4
    assert images[:4].x.data_ptr() == images.x.data_ptr()


def test_class_shares_are_those_of_the_pictures_at_hand():
    images = Images(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.tensor([1, 1, 0, 1]), class_names=("a", "b", "c"))
    assert images.class_shares() == (0.25, 0.75, 0.0)
    assert images[:2].class_shares() == (0.0, 1.0, 0.0)
    assert Images(images.x).class_shares() == ()
    assert Images(images.x).class_names is None


def test_for_a_model_pictures_are_prepared_as_for_its_training():
    images = from_array(pixels(3, 4, 4))
    middle, drawn = images.binarise().x, images.binarise(7).x
    assert torch.equal(images.for_model(2, {}).x, middle)  # two values a pixel and no word on how
    assert torch.equal(images.for_model(2, {"binarise": 7}).x, drawn)
    assert torch.equal(images.binarise(7).for_model(2, {}).x, drawn)  # already of two values
    assert torch.equal(images.for_model(None, {}).x, images.x)
    assert images.for_model(16, {"levels": 16, "centres": True}).levels == 16
    assert images.for_model(16, {"levels": 16, "centres": True}).centres


def test_threshold_binarisation():
    x = torch.tensor([0, 127, 128, 255], dtype=torch.uint8).view(4, 1, 1, 1)
    binary = Images(x).binarise()
    assert binary.levels == 2
    assert binary.to_classes().flatten().tolist() == [0, 0, 1, 1]
    digits = torch.tensor([0, 8, 9, 16], dtype=torch.uint8).view(4, 1, 1, 1)
    assert Images(digits, levels=17).binarise().x.flatten().tolist() == [0, 0, 1, 1]


def test_static_binarisation_is_a_fixed_bernoulli_draw():
    x = torch.tensor([0, 64, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(20_000, 3, 1, 1).contiguous()
    images = Images(x)
    binary = images.binarise(seed=1)
    assert torch.equal(binary.x, images.binarise(seed=1).x)
    assert not torch.equal(binary.x, images.binarise(seed=2).x)
    means = binary.x.double().mean((0, 2, 3))
    assert means[0] == 0
    assert means[2] == 1
    p = 64 / 255
    assert abs(means[1] - p) < 5 * (p * (1 - p) / 20_000) ** 0.5


def test_split_is_a_fixed_division():
    images = Images(torch.arange(200, dtype=torch.uint8).view(200, 1, 1, 1), torch.arange(200))
    rest, held = images.split(0.1)
    assert (len(rest), len(held)) == (180, 20)
    assert sorted(rest.labels.tolist() + held.labels.tolist()) == list(range(200))
    assert torch.equal(held.x.flatten().long(), held.labels)
    assert torch.equal(images.split(20)[1].labels, held.labels)
    assert not torch.equal(images.split(20, seed=1)[1].labels, held.labels)


def test_concatenate():
    first = from_array(pixels(2, 4, 4), np.array([0, 1]))
    both = concatenate(first, first[:1])
    assert both.labels.tolist() == [0, 1, 0]
    assert torch.equal(both.x[2], first.x[0])


def test_arrays_in_every_order_of_axes():
    x = pixels(5, 3, 4, 6)
    assert torch.equal(from_array(x).x, torch.from_numpy(x))
    assert torch.equal(from_array(x.transpose(0, 2, 3, 1)).x, torch.from_numpy(x))
    assert from_array(x[:, 0]).x.shape == (5, 1, 4, 6)
    assert torch.equal(from_array(x.astype(np.int32)).x, torch.from_numpy(x))
    assert from_array(x > 99).levels == 2


def test_labels_may_be_names():
    images = from_array(pixels(3, 4, 4), np.array(["dog", "cat", "dog"]))
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [1, 0, 1]
