import gzip
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.data import (
    Images,
    concatenate,
    from_array,
    read_cifar_folder,
    read_digits,
    read_folder,
    read_idx_images,
    read_npy,
    read_npz,
)
from bfn.data.images import read_row_png


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


class Bomb:
    """Unpickling this ends the test run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


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
    for bad in (0, 200, 0.001):
        with pytest.raises(ValueError, match="at least 1 must be on each side"):
            images.split(bad)


def test_concatenate():
    first = from_array(random_pixels(2, 4, 4), np.array([0, 1]))
    both = concatenate(first, first[:1])
    assert both.labels.tolist() == [0, 1, 0]
    assert torch.equal(both.x[2], first.x[0])
    with pytest.raises(ValueError, match="images of two kinds"):
        concatenate(first, first.binarise())


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(2, 1, 4, 4), {}, "torch.float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), {}, r"shape \(2, 4, 4\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), {"levels": 1}, "levels=1"),
        (
            torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
            {"labels": torch.zeros(3).long()},
            r"shape \(3,\)",
        ),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), {"labels": torch.zeros(2)}, "torch.float32"),
    ],
)
def test_wrong_values_are_refused(x, options, message):
    with pytest.raises(ValueError, match=message):
        Images(x, **options)


# Arrays


def test_arrays_in_every_order_of_axes():
    pixels = random_pixels(5, 3, 4, 6)
    assert torch.equal(from_array(pixels).x, torch.from_numpy(pixels))
    assert torch.equal(from_array(pixels.transpose(0, 2, 3, 1)).x, torch.from_numpy(pixels))
    assert from_array(pixels[:, 0]).x.shape == (5, 1, 4, 6)
    assert torch.equal(from_array(pixels.astype(np.int32)).x, torch.from_numpy(pixels))
    assert from_array(pixels > 99).levels == 2


@pytest.mark.parametrize(
    ("array", "labels", "message"),
    [
        (np.zeros((2, 4, 4)), None, "float64 are not whole numbers in 0..255: save them as uint8"),
        (np.full((2, 4, 4), 256), None, "int64 are not whole numbers"),
        (np.full((2, 4, 4), -1), None, "int64 are not whole numbers"),
        (np.zeros((4, 4), np.uint8), None, r"shape \(4, 4\) is not one of images"),
        (np.zeros((2, 5, 4, 4), np.uint8), None, r"\(2, 5, 4, 4\)"),
        (np.zeros((0, 1, 4, 4), np.uint8), None, r"\(0, 1, 4, 4\)"),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(3, np.int64), "expected 2 whole numbers from 0 up"),
        (np.zeros((2, 4, 4), np.uint8), np.array([0, -1]), "expected 2 whole numbers from 0 up"),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(2), "expected 2 whole numbers from 0 up"),
    ],
)
def test_wrong_arrays_are_refused(array, labels, message):
    with pytest.raises(ValueError, match=message):
        from_array(array, labels)


def test_npy_and_npz(tmp_path):
    pixels, labels = random_pixels(5, 28, 28), np.array([3, 1, 0, 1, 2])
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", labels)
    np.savez_compressed(tmp_path / "both.npz", anything=pixels, classes=labels)
    for images in (read_npy(tmp_path / "x.npy", tmp_path / "y.npy"), read_npz(tmp_path / "both.npz")):
        assert torch.equal(images.x[:, 0], torch.from_numpy(pixels))
        assert images.labels.tolist() == labels.tolist()
        assert images.n_classes == 4
    assert read_npy(tmp_path / "x.npy").labels is None


def test_npy_stays_on_disk_and_unchanged(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 4, 4), np.uint8))
    before = (tmp_path / "x.npy").read_bytes()
    read_npy(tmp_path / "x.npy").x.fill_(7)
    assert (tmp_path / "x.npy").read_bytes() == before


def test_pickles_in_numpy_files_are_never_loaded(tmp_path):
    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "bomb.npz", x=np.array([Bomb()], dtype=object))
    (tmp_path / "plain.npy").write_bytes(pickle.dumps(Bomb()))
    for path, read in (("bomb.npy", read_npy), ("bomb.npz", read_npz), ("plain.npy", read_npy)):
        with pytest.raises(ValueError, match="pickled objects are never loaded"):
            read(tmp_path / path)


@pytest.mark.parametrize("keep", [0, 5, 100, 190])
def test_cut_numpy_files_are_refused(tmp_path, keep):
    for name, save, read in (("x.npy", np.save, read_npy), ("x.npz", np.savez, read_npz)):
        save(tmp_path / name, random_pixels(4, 8, 8))
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:keep])
        with pytest.raises(ValueError, match=f"{name}: not a plain numpy file"):
            read(tmp_path / name)


def test_numpy_files_under_the_name_of_the_other_kind_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", random_pixels(2, 4, 4))
    np.savez(tmp_path / "x.npz", random_pixels(2, 4, 4))
    for name, read in (("x.npz", read_npy), ("x.npy", read_npz)):
        with pytest.raises(ValueError, match=f"{name}: not a plain numpy file"):
            read(tmp_path / name)


def test_npz_without_one_clear_array_is_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=random_pixels(2, 4, 4), b=random_pixels(2, 4, 4))
    with pytest.raises(ValueError, match=r"expected one array of images.*found a \(2, 4, 4\), b \(2, 4, 4\)"):
        read_npz(tmp_path / "two.npz")


# idx and CIFAR-10


@pytest.mark.parametrize("packed", [False, True])
def test_idx_with_labels_beside(tmp_path, packed):
    pixels, labels = random_pixels(3, 28, 28), np.array([7, 0, 9], np.uint8)
    for name, array in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", labels)):
        if packed:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / name).write_bytes(idx(array))
    images = read_idx_images(tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}")
    assert torch.equal(images.x[:, 0], torch.from_numpy(pixels))
    assert images.labels.tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x0d\x03" + b"\0" * 40, "not an idx file of unsigned bytes"),
        (idx(random_pixels(2, 4, 4))[:9], "ends within its header"),
        (idx(random_pixels(2, 4, 4))[:-1], "says 32 bytes, found 31"),
        (idx(random_pixels(2, 4, 4)) + b"x", "says 32 bytes, found more than 32"),
    ],
)
def test_damaged_idx_is_refused(tmp_path, content, message):
    (tmp_path / "images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx_images(tmp_path / "images-idx3-ubyte")


def test_damaged_gz_is_refused(tmp_path):
    path = tmp_path / "images-idx3-ubyte.gz"
    for content in (b"plain", gzip.compress(idx(random_pixels(20, 8, 8)))[:-9]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a damaged \.gz file"):
            read_idx_images(path)


def test_cifar_binary_folder(tmp_path):
    pixels, labels = random_pixels(4, 3, 32, 32), np.array([6, 9, 0, 1], np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(4, -1)], axis=1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:3].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(records[3:].tobytes())
    images = read_cifar_folder(tmp_path)
    assert torch.equal(images.x, torch.from_numpy(pixels))
    assert images.labels.tolist() == [6, 9, 0, 1]
    (tmp_path / "data_batch_2.bin").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"data_batch_2.bin: 100 bytes are no whole number of CIFAR-10 records"):
        read_cifar_folder(tmp_path)


def test_one_image_a_row(tmp_path):
    pixels = random_pixels(3, 3, 32, 32)
    Image.fromarray(pixels.transpose(0, 2, 3, 1).reshape(3, 1024, 3)).save(tmp_path / "rows.png")
    with (tmp_path / "rows.png").open("rb") as file:
        assert np.array_equal(read_row_png(file), pixels)


# Folders


def save(path, pixels):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_folder_of_gray_images_in_order_of_name(tmp_path):
    pixels = random_pixels(3, 5, 4)
    for name, picture in zip(("c.png", "a.png", "b.bmp"), pixels, strict=True):
        save(tmp_path / name, picture)
    (tmp_path / ".hidden").write_text("passed over")
    images = read_folder(tmp_path, progress=False)
    assert torch.equal(images.x[:, 0], torch.from_numpy(pixels[[1, 2, 0]]))
    assert images.labels is None
    assert images.n_classes == 0


def test_sub_folders_are_classes_and_one_colour_image_makes_all_rgb(tmp_path):
    gray, colour = random_pixels(5, 4), random_pixels(5, 4, 3)
    save(tmp_path / "dog" / "1.png", gray)
    save(tmp_path / "cat" / "1.png", colour)
    images = read_folder(tmp_path, progress=False)
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [0, 1]
    assert torch.equal(images.x[0], torch.from_numpy(colour).permute(2, 0, 1))
    assert torch.equal(images.x[1], torch.from_numpy(gray).expand(3, 5, 4))


def test_palettes_and_transparency_become_rgb(tmp_path):
    colour = np.full((4, 4, 3), (200, 10, 30), np.uint8)
    Image.fromarray(colour).convert("RGBA").save(tmp_path / "a.png")
    Image.fromarray(colour).convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "b.png")
    images = read_folder(tmp_path, progress=False)
    assert torch.equal(images.x, torch.from_numpy(colour).permute(2, 0, 1).expand(2, 3, 4, 4))


def test_wrong_folders_get_one_line_that_names_the_file(tmp_path):
    def refused():
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
            read_folder(tmp_path, progress=False)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no files in this folder" in refused()
    save(tmp_path / "a.png", random_pixels(5, 4))
    save(tmp_path / "b.png", random_pixels(6, 4))
    assert f"{tmp_path / 'b.png'}: 4x6 pixels, but {tmp_path / 'a.png'} has 4x5" in refused()
    (tmp_path / "b.png").write_text("hello")
    assert f"{tmp_path / 'b.png'}: not an image" in refused()
    Image.fromarray(np.zeros((5, 4), np.uint16)).save(tmp_path / "b.png")
    assert "more than 8 bits" in refused()
    save(tmp_path / "b.png", random_pixels(5, 4))
    content = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(content[:-30])
    assert f"{tmp_path / 'b.png'}: a damaged image" in refused()


def test_digits():
    digits = read_digits()
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.levels == 17
    x = digits.to_float()
    assert torch.equal(x, digits.x.float() / 8 - 1)
    assert (x.min(), x.max()) == (-1, 1)
