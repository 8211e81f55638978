"""Files that somebody else wrote: configs, stored models, data, settings, and the command line over them."""

import copy
import gzip
import json
import shutil
import struct

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from PIL import Image

import bfn
import tiny
from bfn.cli import main
from bfn.training.settings import Settings, read_settings, recipe, recipes
from fuzzing import JSON, allowed, assert_finite, cases, damage, run

KINDS = ("vectors", "images", "text")


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value, path, new):
    """A copy with another value at a place."""
    if not path:
        return new
    whole = copy.deepcopy(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return whole


@cases(60, 2500)
def test_configs(n, tmp_path):
    folders = {kind: tiny.save(kind, tmp_path / kind) for kind in KINDS}
    configs = {kind: json.loads((folder / "config.json").read_text()) for kind, folder in folders.items()}
    for config in configs.values():
        del config["sha256"]  # changed by hand

    def check(kind, chance, new):
        config = configs[kind]
        for _ in range(chance.choice((1, 1, 2))):
            config = changed(config, chance.choice(list(places(config))), new) if isinstance(config, dict) else config
        (folders[kind] / "config.json").write_text(json.dumps(config))
        with allowed():
            model = bfn.load(folders[kind])
            assert_finite(model.sample(1, nfe=2, seed=0).x)

    run(n, check, kind=st.sampled_from(KINDS), chance=st.randoms(use_true_random=False), new=st.sampled_from(JSON))


@cases(60, 2000)
def test_data_files(n, tmp_path):
    pixels = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8)
    np.save(tmp_path / "x.npy", pixels)
    np.savez_compressed(tmp_path / "x.npz", x=pixels, y=np.arange(6))
    idx = b"\0\0\x08\x03" + struct.pack(">3I", 6, 8, 8) + pixels.tobytes()
    (tmp_path / "x-idx3.gz").write_bytes(gzip.compress(idx))
    (tmp_path / "x.txt").write_text("some words of a text, and some more of them " * 9)
    (tmp_path / "x.csv").write_text("name,size,kind\n" + "".join(f"row{i},{i / 7},{'ab'[i % 2]}\n" for i in range(30)))
    for kind in ("png", "jpg", "gif", "bmp", "tiff"):
        (tmp_path / kind).mkdir()
        Image.fromarray(np.kron(pixels[0], np.ones((4, 4), np.uint8))).save(tmp_path / kind / f"a.{kind}")
        shutil.copy(tmp_path / kind / f"a.{kind}", tmp_path / kind / f"b.{kind}")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("b.")]
    whole = {path: path.read_bytes() for path in files}

    def check(path, chance):
        path.write_bytes(damage(whole[path], chance))
        source = path if path.parent == tmp_path else path.parent
        with allowed():
            bfn.data.load(source, "all", progress=False)
        path.write_bytes(whole[path])

    run(n, check, path=st.sampled_from(sorted(files)), chance=st.randoms(use_true_random=False))


@cases(100, 1000)
def test_settings(n, tmp_path):
    known = [recipe(name).to_dict() for name in recipes()]

    def check(values, chance, new, suffix):
        given = changed(values, chance.choice(list(places(values))), new)
        path = tmp_path / f"settings{suffix}"
        path.write_text(json.dumps(given))
        with allowed():
            Settings.from_dict(given)
        with allowed():
            read_settings(path)

    run(
        n, check, values=st.sampled_from(known), chance=st.randoms(use_true_random=False), new=st.sampled_from(JSON),
        suffix=st.sampled_from((".json", ".yaml", ".toml", ".txt")),
    )  # fmt: skip


WORDS = (
    "0", "1", "-1", "1.5", "nan", "inf", "1e18", "99999999999999999999", "", " ", "x", "\x1b[31m", "../..", "/dev/null",
)  # fmt: skip
COMMANDS = {
    "sample": "--n --nfe --solver --seed --grid --g --t-start --label --guidance --prompt",
    "info": "--nfe",
    "evaluate": "--n --data --seed --batch --n-steps --device",
    "likelihood": "--n --nfe --data --method --probes",
    "train": "--recipe --config --data --seed",
    "solvers": "",
    "models": "",
}


@cases(25, 500)
def test_command_lines(n, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "../.." is read as a folder of data: that of the tests, not all that lies above us.
    models = [str(tiny.save(kind, tmp_path / kind)) for kind in KINDS]

    def check(command, model, options, chance):
        assume((command, model) != ("likelihood", "digits"))  # A minute of honest work: 64 backward passes a call.
        words = [command] if command in ("train", "solvers", "models") else [command, model]
        if command in ("sample", "train"):
            words += ["--out", str(tmp_path / "out")]
        for option in COMMANDS[command].split():
            if chance.random() < 0.3:
                words += [option, chance.choice(WORDS)]
        words += options
        # A command answers what can be mended by itself: nothing but its exit code comes out.
        with allowed():
            assert main(words) in (0, 2)

    odd = st.lists(st.sampled_from(("--json", "--help", "--x", *WORDS)), max_size=2)
    run(
        n, check, command=st.sampled_from(sorted(COMMANDS)), model=st.sampled_from((*models, "digits", "nothing")),
        options=odd, chance=st.randoms(use_true_random=False),
    )  # fmt: skip
