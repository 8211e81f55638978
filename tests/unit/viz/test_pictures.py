"""Pictures and lines show the values that they are made from."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

import bfn
from bfn import viz
from bfn.core.codec import pixels
from bfn.core.sampling import Step


def letters(alphabet: str | None = None) -> bfn.Model:
    model = bfn.exact.StringSet(torch.tensor([[0, 1, 1, 2]]), n_classes=3)
    model.info.alphabet = alphabet
    return model


def test_pixels_map_the_ends_of_the_range_and_clip_beyond():
    x = torch.tensor([-1.0, 1.0, 0.0, 3.0]).view(1, 1, 2, 2)
    assert pixels(x).flatten().tolist() == [0, 255, 128, 255]
    classes = torch.tensor([0, 1, 2, 1]).view(1, 1, 2, 2)
    assert pixels(bfn.DiscreteFlow(3).values(classes)).flatten().tolist() == [0, 128, 255, 128]
    green = torch.tensor([-1.0, 1.0, -1.0]).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    assert np.asarray(viz.sheet(green))[10, 10].tolist() == [0, 255, 0]


def test_lines_are_text_or_numbers():
    x = torch.tensor([[1, 0, 2], [2, 2, 1]])
    assert viz.lines(letters(" ab"), x) == ["a b", "bba"]
    assert viz.lines(letters(), x) == ["1 0 2", "2 2 1"]
    assert viz.lines(letters(), torch.tensor([[0.5, -1.25]])) == ["0.5 -1.25"]


def test_samples_are_written_as_text_or_images(tmp_path):
    assert viz.write_samples(tmp_path / "a", letters("xyz"), torch.tensor([[2, 1]])).read_text() == "zy\n"
    images = bfn.exact.Points(torch.zeros(1, 1, 56, 56))
    with Image.open(viz.write_samples(tmp_path / "b", images, torch.ones(2, 1, 56, 56))) as picture:
        assert (np.asarray(picture) == 255).all()


def test_certain_symbols_are_darker():
    def ink(p: float) -> float:
        theta = torch.tensor([p, 1 - p]).expand(1, 8, 2)
        return 255 - float(np.asarray(viz.text_picture(theta, "xo")).mean())

    assert ink(0.5) == 0
    assert 0 < ink(0.7) < ink(1.0)


def test_side_by_side_keeps_every_pixel():
    left, right = viz.sheet(torch.zeros(4, 1, 8, 8)), viz.sheet(torch.ones(1, 1, 28, 28))
    page = np.asarray(viz.side_by_side([("left", left), ("right", right)], "title"))
    assert page.shape[0] >= left.height
    assert (page == 128).sum() >= 4 * 56 * 56


@pytest.mark.parametrize("suffix", [".gif", ".png"])
def test_animations_play_every_frame_and_hold_the_last(suffix, tmp_path):
    frames = [viz.sheet(torch.full((1, 1, 8, 8), value)) for value in (-1.0, 0.0, 1.0)]
    path = viz.write_animation(tmp_path / f"a{suffix}", frames, seconds=0.6)
    with Image.open(path) as animation:
        assert [frame.info["duration"] for frame in ImageSequence.Iterator(animation)] == [200, 200, 600]


def test_the_recorder_keeps_inputs_and_predictions():
    u = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    recorder = viz.Recorder(letters("abc"), keep=2)
    recorder(Step(0, 0.5, u, torch.softmax(u, -1)))
    [(t, known, predicted)] = recorder.steps
    assert t == 0.5
    torch.testing.assert_close(known, torch.softmax(u[:2] * (0.75 * 0.5), -1))
    torch.testing.assert_close(predicted, torch.softmax(u[:2], -1))


def test_class_probabilities_of_pixels_are_drawn_as_their_mean():
    recorder = viz.Recorder(letters())
    values = torch.tensor([0.5, 0.0, 0.5]).expand(1, 1, 56, 56, 3)
    recorder.steps.append((0.5, values, values))
    [frame] = recorder.frames()
    assert (np.asarray(frame) == 128).sum() >= 2 * 56 * 56
