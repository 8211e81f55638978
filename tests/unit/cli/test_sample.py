"""``bfn sample``: the files are the library's samples, the same for the same seed; wrong input writes nothing."""

import resource

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
import tiny
from bfn.core.solver import plan
from commands import run


@pytest.mark.parametrize("kind", ["images", "binary", "text", "vectors"])
def test_the_same_seed_gives_the_same_files(kind, models, tmp_path):
    extra = [] if kind == "vectors" else ["--steps-gif"]
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        run("sample", models / kind, "--nfe", 3, "--n", 5, "--seed", seed, "--out", tmp_path / out, *extra)
    a, b, c = ({file.name: file.read_bytes() for file in (tmp_path / out).iterdir()} for out in "abc")
    expected = {
        "images": {"samples.png", "samples.npz", "steps.gif"},
        "text": {"samples.txt", "steps.gif"},
        "vectors": {"samples.npz", "samples.csv"},
    }
    assert set(a) == expected[{"binary": "images"}.get(kind, kind)]
    if extra:
        assert Image.open(tmp_path / "a" / "steps.gif").n_frames == 3
    assert a == b
    assert all(a[name] != c[name] for name in a)


def test_text_is_printed_and_stored(models, tmp_path, capsys):
    run("sample", models / "text", "--solver", "bfn-solver2", "--nfe", 4, "--n", 3, "--out", tmp_path)
    lines = (tmp_path / "samples.txt").read_text().splitlines()
    assert [len(line) for line in lines] == [20] * 3
    assert set("".join(lines)) <= set(tiny.ALPHABET)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == lines
    assert shown[3].startswith("bfn-solver2 ran bfn-solver2 (order 2")
    assert "4 network calls" in shown[4]
    assert " s, " in shown[4]


def test_json_counts_the_calls_of_all_batches(models, tmp_path, values):
    report = values("sample", models / "images", "--nfe", 3, "--n", 5, "--batch", 2, "--out", tmp_path)
    assert (report["n"], report["nfe"], report["calls"]) == (5, 3, 9)
    assert report["plan"] == str(plan(bfn.load(models / "images"), "auto", 3))
    assert report["plan"].startswith("fast-sde")
    assert report["seconds"] > 0
    assert len(np.load(tmp_path / "samples.npz")["x"]) == 5


def test_labels_are_taken_in_turn_and_minus_one_is_none(models, tmp_path):
    arrays = []
    for label in (["--label", 2, 0], ["--label", -1]):
        run("sample", models / "images", "--nfe", 2, "--n", 3, "--out", tmp_path, *label)
        with np.load(tmp_path / "samples.npz") as stored:
            arrays.append((stored["labels"].tolist(), stored["x"]))
    assert [labels for labels, _ in arrays] == [[2, 0, 2], [-1, -1, -1]]
    assert not np.array_equal(arrays[0][1][0], arrays[1][1][0])


def test_classes_have_names_and_are_drawn_by_their_shares(tmp_path, capsys):
    model = tiny.build("images")
    model.info.classes = bfn.Classes(("circle", "square", "2"), (0.0, 0.25, 0.75))
    model.save(tmp_path / "shapes")
    run("sample", tmp_path / "shapes", "--nfe", 2, "--n", 3, "--label", "circle", "square", "--out", tmp_path)
    assert np.load(tmp_path / "samples.npz")["labels"].tolist() == [0, 1, 0]
    assert "by their shares" not in capsys.readouterr().out
    run("sample", tmp_path / "shapes", "--nfe", 2, "--n", 40, "--batch", 7, "--out", tmp_path)
    labels = np.load(tmp_path / "samples.npz")["labels"]
    named = " ".join(model.info.classes.names[k] for k in labels)
    assert f"classes drawn by their shares in the data: {named}\n" in capsys.readouterr().out
    assert set(labels) == {1, 2}


@pytest.mark.parametrize(
    ("kind", "options", "part"),
    [
        ("images", ["--nfe", 0], "nfe=0"),
        ("images", ["--solver", "bfn-solver"], "did you mean"),
        ("images", ["--solver", "bfn-solver2"], "discrete data: for continuous data take one of bfn,"),
        ("text", ["--solver", "bfn-solver2-singlestep", "--nfe", 5], "give a multiple, such as 4"),
        ("images", ["--t-start", 2], "t_start=2.0"),
        ("images", ["--label", 3], "label='3': expected one of the 3 classes 0, 1, 2, its number, or -1 for none"),
        ("text", ["--label", 0], "knows no classes"),
        ("vectors", ["--steps-gif"], "neither images nor text"),
        ("text", ["--prompt", "the", "--known", "mnist"], "--known mnist with --prompt"),
        ("images", ["--keep", "left"], "--keep left without --known"),
        ("images", ["--device", "abacus"], "device='abacus'"),
        ("nothing", [], "neither a directory nor one of the bundled models"),
    ],
)
def test_wrong_input(kind, options, part, models, tmp_path, refused):
    assert part in refused("sample", models / kind, *options, "--out", tmp_path / "out")


def test_a_disk_that_is_full(models, tmp_path, refused):
    """The limit on the size of files stands in for the disk: the same error path, without a file system of its own."""
    out = tmp_path / "out"
    out.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        line = refused("sample", models / "images", "--nfe", 2, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in line


def test_a_prompt_is_kept_and_the_rest_filled_in(models, tmp_path):
    run("sample", models / "text", "--prompt", "the ____ of", "--nfe", 4, "--n", 5, "--batch", 2, "--out", tmp_path)
    lines = (tmp_path / "samples.txt").read_text().splitlines()
    assert len(lines) == 5
    for line in lines:
        assert (line[:4], line[8:11], len(line)) == ("the ", " of", 20)
    assert len({line[4:8] for line in lines}) > 1


@pytest.mark.parametrize(("keep", "kept"), [("top", np.s_[..., :4, :]), ("right", np.s_[..., 4:])])
def test_half_of_known_images_is_kept(keep, kept, models, pictures, tmp_path):
    known = ["--known", pictures, "--keep", keep]
    run("sample", models / "images", *known, "--nfe", 3, "--n", 5, "--batch", 2, "--out", tmp_path)
    with np.load(pictures) as real, np.load(tmp_path / "samples.npz") as stored:
        assert (stored["labels"] == -1).all()
        halves = {(2 * x[None].astype(np.float32) / 255 - 1)[kept].round(4).tobytes() for x in real["x"]}
        assert {image[kept].round(4).tobytes() for image in stored["x"]} <= halves
        assert len({image.tobytes() for image in stored["x"]}) == 5


def test_a_model_of_tokens_is_sampled_and_told(tmp_path, capsys):
    tokens = bfn.data.TokenList(("Ala", "Gly", *(f"[{number}]" for number in range(25))))
    model = tiny.build("text")
    model.info = bfn.ModelInfo(text_tokenizer=tokens)
    model.save(tmp_path / "model")
    run("sample", tmp_path / "model", "--prompt", "Gly_Ala", "--nfe", 3, "--n", 4, "--seed", 5, "--out", tmp_path)
    lines = (tmp_path / "samples.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    for line in lines:
        classes = tokens.encode(line).tolist()
        assert (len(classes), classes[0], classes[2]) == (20, 1, 0)
    capsys.readouterr()
    run("info", tmp_path / "model")
    assert "27: 'Ala', 'Gly', '[0]'" in capsys.readouterr().out


def test_wrong_conditions_are_one_line(models, tmp_path, refused):
    np.savez(tmp_path / "large.npz", x=np.zeros((4, 9, 9), dtype=np.uint8))
    (tmp_path / "taken").write_text("")
    large = ("--known", tmp_path / "large.npz")
    for kind, options, message in [
        ("text", ("--prompt", "The"), "'T' at position 0 is not among the symbols"),
        ("text", ("--prompt", "a" * 21), "21 characters: the model's texts have 20"),
        ("images", ("--prompt", "the"), "not text"),
        ("text", large, "the model's data are (20,)"),
        ("images", large, "(1, 9, 9)"),
        ("images", ("--temperature", 0.5), "temperature=0.5: it is for classes"),
        ("text", ("--guidance", 2), "guidance=2: it needs conditions"),
        ("text", ("--nfe", 2, "--out", tmp_path / "taken"), "taken"),
    ]:
        assert message in refused("sample", models / kind, *options)


def test_particles_are_for_prompts_and_tell_how_many_count(models, tmp_path, values, refused):
    few = ("sample", models / "text", "--nfe", 4, "--n", 3, "--out", tmp_path, "--particles", 4)
    told = values(*few, "--prompt", "a?c", "--unknown", "?")
    assert 1 <= told["effective_sample_size"] <= 4
    assert "g = 1" in told["plan"]
    assert all((text[0], text[2]) == ("a", "c") for text in told["text"])
    assert "--particles 4 without --prompt, --known or --given" in refused(*few)


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        ("images", ["--clip", "-0.5", "0.5"], {"clip": (-0.5, 0.5)}),
        ("images", ["--autocast", "bfloat16"], {"autocast": torch.bfloat16}),
        ("images", ["--noise", "fixed", "--solver", "fast-sde"], {"noise": "fixed", "solver": "fast-sde"}),
        ("images", ["--grid", "power:1.5", "--t-start", "0.01"], {"grid": "power:1.5", "t_start": 0.01}),
        ("images", ["--no-clip", "--solver", "bfn-solver1"], {"clip": False, "solver": "bfn-solver1"}),
        ("images", ["--label", "1", "--guidance", "2"], {"label": 1, "guidance": 2.0}),
        ("molecules", ["--temperature", "0.3"], {"temperature": 0.3}),
        ("molecules", ["--lengths", "4", "--condition", "gap=0.2"], {"lengths": 4, "condition": {"gap": 0.2}}),
        ("molecules", ["--guidance", "gap=2"], {"guidance": {"gap": 2.0}}),
    ],
)
def test_options_are_those_of_the_library_in_the_same_words(kind, words, options, models, tmp_path):
    stored = models / kind
    run("sample", stored, "--nfe", 3, "--n", 4, "--seed", 5, "--out", tmp_path, *words)
    expected = bfn.load(stored).sample(4, nfe=3, seed=5, **options)
    if kind == "images":
        assert np.array_equal(np.load(tmp_path / "samples.npz")["x"], expected.x.numpy())
    else:
        assert (tmp_path / "samples.txt").read_text().splitlines() == expected.decoded


def test_samples_can_start_from_data(models, pictures, tmp_path):
    start = ["--start-from", pictures, "--t-start", 0.9, "--grid", "uniform"]
    run("sample", models / "images", *start, "--nfe", 3, "--n", 3, "--out", tmp_path)
    assert len(np.load(tmp_path / "samples.npz")["x"]) == 3
