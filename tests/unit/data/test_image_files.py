import gzip

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.data.images import CIFAR10_CLASSES, read_cifar_folder, read_folder, read_idx_images, read_npy, read_npz
from data_files import idx, write
from data_files import pixels as random_pixels


def test_npy_and_npz_which_are_never_changed(tmp_path):
    pixels, labels = random_pixels(5, 28, 28), np.array([3, 1, 0, 1, 2])
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", labels)
    np.savez_compressed(tmp_path / "both.npz", anything=pixels, classes=labels)
    for images in (read_npy(tmp_path / "x.npy", tmp_path / "y.npy"), read_npz(tmp_path / "both.npz")):
        assert torch.equal(images.x[:, 0], torch.from_numpy(pixels))
        assert (images.labels.tolist(), images.n_classes) == ([3, 1, 0, 1, 2], 4)
    before = (tmp_path / "x.npy").read_bytes()
    images = read_npy(tmp_path / "x.npy")
    assert images.labels is None
    images.x.fill_(7)
    assert (tmp_path / "x.npy").read_bytes() == before


@pytest.mark.parametrize(("ending", "packed"), [("", bytes), (".gz", gzip.compress)])
def test_idx_with_labels_beside(tmp_path, ending, packed):
    pixels = random_pixels(3, 28, 28)
    path = write(tmp_path / f"train-images-idx3-ubyte{ending}", packed(idx(pixels)))
    write(tmp_path / f"train-labels-idx1-ubyte{ending}", packed(idx(np.array([7, 0, 9], np.uint8))))
    images = read_idx_images(path)
    assert torch.equal(images.x[:, 0], torch.from_numpy(pixels))
    assert images.labels.tolist() == [7, 0, 9]


def test_cifar_binary_folder(tmp_path):
    pixels, labels = random_pixels(4, 3, 32, 32), np.array([6, 9, 0, 1], np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(4, -1)], axis=1)
    write(tmp_path / "data_batch_1.bin", records[:3].tobytes())
    write(tmp_path / "data_batch_2.bin", records[3:].tobytes())
    images = read_cifar_folder(tmp_path)
    assert torch.equal(images.x, torch.from_numpy(pixels))
    assert images.labels.tolist() == [6, 9, 0, 1]
    assert images.class_names == CIFAR10_CLASSES


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
    assert (images.labels, images.n_classes, images.class_names) == (None, 0, None)


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
