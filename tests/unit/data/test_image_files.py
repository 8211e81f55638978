import gzip
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.data.images import (
    CIFAR10_CLASSES,
    read_cifar_folder,
    read_folder,
    read_idx_images,
    read_npy,
    read_npz,
    read_row_png,
)


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


class Bomb:
    """Unpickling this ends the test run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


# Numpy files


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
        with pytest.raises(ValueError, match=r"a damaged file"):
            read_idx_images(path)


def test_cifar_binary_folder(tmp_path):
    pixels, labels = random_pixels(4, 3, 32, 32), np.array([6, 9, 0, 1], np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(4, -1)], axis=1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:3].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(records[3:].tobytes())
    images = read_cifar_folder(tmp_path)
    assert torch.equal(images.x, torch.from_numpy(pixels))
    assert images.labels.tolist() == [6, 9, 0, 1]
    assert images.class_names == CIFAR10_CLASSES
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
    assert images.class_names is None


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
        with pytest.raises(ValueError) as caught:
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
