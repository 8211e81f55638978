import numpy as np
import torch

from bfn.data.images import Images, concatenate, from_array
from data_files import pixels


def test_to_float_spans_minus_one_to_one_at_every_level():
    for levels in (2, 17, 256):
        x = torch.arange(levels, dtype=torch.uint8).view(levels, 1, 1, 1)
        values = Images(x, levels=levels).to_float().flatten()
        torch.testing.assert_close(values, torch.linspace(-1, 1, levels), rtol=0, atol=2e-7)
        assert (values[0], values[-1]) == (-1, 1)


def test_indexing_and_joining_take_labels_along():
    x = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    images = Images(x, torch.arange(6) % 3, class_names=("a", "b", "c"))
    chosen = images[torch.tensor([4, 1])]
    assert (chosen.to_classes().flatten().tolist(), chosen.to_classes().dtype) == ([4, 1], torch.int64)
    assert (chosen.labels.tolist(), chosen.n_classes, chosen.data_shape) == ([1, 1], 3, (1, 1, 1))
    assert images[:4].x.data_ptr() == images.x.data_ptr()
    both = concatenate(images, chosen)
    assert (len(both), both.labels[6:].tolist(), both.x[6:].flatten().tolist()) == (8, [1, 1], [4, 1])


def test_class_shares_are_those_of_the_pictures_at_hand():
    images = Images(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.tensor([1, 1, 0, 1]), class_names=("a", "b", "c"))
    assert images.class_shares() == (0.25, 0.75, 0.0)
    assert images[:2].class_shares() == (0.0, 1.0, 0.0)
    assert Images(images.x).class_shares() == ()


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
    for levels, values in ((256, [0, 127, 128, 255]), (17, [0, 8, 9, 16])):
        binary = Images(torch.tensor(values, dtype=torch.uint8).view(4, 1, 1, 1), levels=levels).binarise()
        assert (binary.levels, binary.x.flatten().tolist()) == (2, [0, 0, 1, 1])


def test_static_binarisation_is_a_fixed_bernoulli_draw():
    x = torch.tensor([0, 64, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(20_000, 3, 1, 1).contiguous()
    images = Images(x)
    binary = images.binarise(seed=1)
    assert torch.equal(binary.x, images.binarise(seed=1).x)
    assert not torch.equal(binary.x, images.binarise(seed=2).x)
    black, grey, white = binary.x.double().mean((0, 2, 3))
    assert (black, white) == (0, 1)
    p = 64 / 255
    assert abs(grey - p) < 5 * (p * (1 - p) / 20_000) ** 0.5


def test_split_is_a_fixed_division():
    images = Images(torch.arange(200, dtype=torch.uint8).view(200, 1, 1, 1), torch.arange(200))
    rest, held = images.split(0.1)
    assert (len(rest), len(held)) == (180, 20)
    assert sorted(rest.labels.tolist() + held.labels.tolist()) == list(range(200))
    assert torch.equal(held.x.flatten().long(), held.labels)
    assert torch.equal(images.split(20)[1].labels, held.labels)
    assert not torch.equal(images.split(20, seed=1)[1].labels, held.labels)


def test_arrays_in_every_order_of_axes_with_numbers_or_names_as_labels():
    x = pixels(5, 3, 4, 6)
    assert torch.equal(from_array(x).x, torch.from_numpy(x))
    assert torch.equal(from_array(x.transpose(0, 2, 3, 1)).x, torch.from_numpy(x))
    assert from_array(x[:, 0]).x.shape == (5, 1, 4, 6)
    assert torch.equal(from_array(x.astype(np.int32)).x, torch.from_numpy(x))
    assert from_array(x > 99).levels == 2
    named = from_array(x[:3], np.array(["dog", "cat", "dog"]))
    assert (named.class_names, named.labels.tolist()) == (("cat", "dog"), [1, 0, 1])
