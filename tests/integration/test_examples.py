"""The examples and notebooks run from end to end in a small form, and their judges judge."""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

import tiny

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("molecules", "scaffold", "proteins", "policy", "chorales"):
        sys.modules.pop(name, None)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: object) -> int:
    return int(example(name).main([str(argument) for argument in arguments]))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    stored = sum(len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code")
    assert stored >= 5, "a notebook is read as often as run: keep its outputs"
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()


def test_the_demo_shows_the_models_that_are_there_and_names_the_others(tmp_path, capsys):
    stored = [tiny.save(kind, tmp_path / kind) for kind in ("images", "text", "molecules")]
    out = tmp_path / "out"
    assert run("demo", "--out", out, "--models", "no-such-model", *stored, "--n", 20, "--nfe", 4) == 0
    told = capsys.readouterr().out
    assert "missing: no-such-model" in told
    assert "3 of 4 models shown" in told
    assert told.count(" are molecules") == 2
    written = {"images.png", "text.txt", "molecules.txt", "molecules.png"}
    assert files(out) == written | {f"{path.name}-forming.gif" for path in stored}
    lines = (out / "text.txt").read_text().splitlines()
    assert [len(line) for line in lines if line.startswith("  ")] == [22] * 4
    picture = np.asarray(Image.open(out / "images.png"))
    # Two sheets of 3 columns (one a class) and 7 rows, each image 56 pixels wide.
    assert picture.shape[0] >= 7 * 58
    assert picture.shape[1] >= 2 * 3 * 58


def test_the_demo_without_any_model_says_so(tmp_path, capsys):
    assert run("demo", "--out", tmp_path / "out", "--models", "no-such-model") == 1
    assert "bfn train --recipe" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "option"), [("demo", "--nfe"), ("own_data", "--steps")])
def test_wrong_numbers_are_refused(name, option, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        run(name, "--out", tmp_path / "out", option, 0)


def test_diffusers_unet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diffusers")
    assert run("diffusers_unet", "--steps", 2, "--batch", 8, "--out", tmp_path / "pipeline") == 0
    assert {"model_index.json", "samples.png", "scheduler", "unet"} <= files(tmp_path / "pipeline")
    assert "10 network calls" in capsys.readouterr().out


def test_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, present, radius = example("own_data").rings(50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(parts["at"].norm(dim=-1)[present], radius[:, None].expand(50, 6)[present])
    assert not parts["at"][~present].any()
    assert run("own_data", "--out", tmp_path / "rings.png", "--steps", 5, "--width", 16) == 0
    told = capsys.readouterr().out
    assert "3, 4, 5 and 6 points, radius 0.7: [3, 4, 5, 6] points" in told
    assert "a star at (0.8, 0): [5, 5, 5, 5] points" in told
    assert np.asarray(Image.open(tmp_path / "rings.png")).std() > 0


def test_proteins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("proteins", "--steps", 2, "--n", 4, "--out", tmp_path) == 0
    assert "auto, a loop filled in, 5 calls" in capsys.readouterr().out
    assert {"model", "run", "proteins.png"} <= files(tmp_path)


def test_the_protein_familys_likelihood_is_one_over_all_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a family with two columns and at most two residues: the probabilities of all sequences sum to 1."""
    proteins = example("proteins")
    monkeypatch.setattr(proteins, "COLUMNS", 1)
    family = proteins.Family()
    total = 0.0
    for length in (1, 2):
        grid = torch.cartesian_prod(*[torch.arange(20)] * length).view(-1, length)
        x = torch.zeros(len(grid), proteins.LONGEST, dtype=torch.long)
        x[:, :length] = grid
        present = (torch.arange(proteins.LONGEST) < length).expand(x.shape)
        total += float((family.log_likelihood(x, present) * length).exp().sum())
    empty = (1 - proteins.INSERT) * proteins.DELETE
    assert total == pytest.approx(1 - empty, abs=1e-6)


def test_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "--steps", 2, "--n", 4, "--out", tmp_path) == 0
    assert "bfn, 20 calls" in capsys.readouterr().out
    assert {"model", "policy.png", "paths.png"} <= files(tmp_path)


def score(path: Path, pitches: list[list[str]]) -> None:
    """A score of quarter notes, in G major."""
    notes = [
        "".join(
            f"<note><pitch><step>{p[0]}</step><octave>{p[1]}</octave></pitch><duration>2</duration></note>"
            for p in line
        )
        for line in pitches
    ]
    key = "<attributes><divisions>2</divisions><key><fifths>1</fifths></key></attributes>"
    parts = "".join(f"<part><measure>{key}{line}</measure></part>" for line in notes)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("score.xml", f"<score-partwise>{parts}</score-partwise>")


def test_chorales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chorales = example("chorales")
    for i in range(4):
        score(tmp_path / f"bwv{i}.mxl", [["G4", "A4", "B4", "D5"] * 5, ["D4"] * 20, ["B3"] * 20, ["G2", "D3"] * 10])
    found = chorales.read_score(tmp_path / "bwv0.mxl")
    assert found is not None
    assert found.shape == (4, 40)  # eighths
    assert (found[0, :2] + chorales.LOWEST).tolist() == [72, 72]  # G major is brought to C major
    arguments = ["--scores", str(tmp_path), "--steps", "2", "--n", "1", "--out", str(tmp_path / "out")]
    assert chorales.main(arguments) == 0
    assert "Bach himself: 1.0000" in capsys.readouterr().out
    midi = (tmp_path / "out" / "bach.mid").read_bytes()
    assert midi.startswith(b"MThd")
    assert midi.count(b"MTrk") == 4
    assert {"voices.png", "chorales.png", "auto.mid", "bfn.mid"} <= files(tmp_path / "out")


def molecules_to_read(folder: Path, n: int) -> None:
    """Methane and water, as QM9 is fetched."""
    arm = 1.09 / 3**0.5
    methane = [(0, 0, 0), (arm, arm, arm), (arm, -arm, -arm), (-arm, arm, -arm), (-arm, -arm, arm)]
    water = [(0, 0, 0), (0.96, 0, 0), (-0.24, 0.93, 0)]
    x, atoms = np.zeros((n, 29, 3), np.float32), np.zeros((n, 29), np.uint8)
    for i in range(n):
        own = methane if i % 2 else water
        x[i, : len(own)], atoms[i, : len(own)], atoms[i, 0] = own, 1, 6 if i % 2 else 8
    np.save(folder / "positions.npy", x)
    np.save(folder / "atoms.npy", atoms)


def test_molecules_and_scaffolds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    molecules, scaffold = example("molecules"), example("scaffold")
    molecules_to_read(tmp_path, 40)
    arguments = ["--out", str(tmp_path), "--data", str(tmp_path), "--n", "2"]
    assert molecules.main([*arguments, "--steps", "2", "--calls", "3"]) == 0
    assert "real molecules: 1.0000 [1.0000, 1.0000] of the atoms are stable" in capsys.readouterr().out
    assert scaffold.main([*arguments, "--calls", "4"]) == 0
    assert "particles count" in capsys.readouterr().out
    assert {"stability.png", "molecules.png", "scaffold.png"} <= files(tmp_path)


def test_the_network_of_molecules_turns_with_them_and_knows_no_centre() -> None:
    molecules = example("molecules")
    network, own = molecules.EGNN(width=16, messages=8, n_layers=2).double(), torch.Generator().manual_seed(0)
    shape, t = (3, molecules.MOST), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    inputs = {
        "x": torch.randn(*shape, 3, generator=own, dtype=torch.float64),
        "kind": torch.rand(*shape, 5, generator=own, dtype=torch.float64).softmax(-1),
        "charge": torch.randn(shape, generator=own, dtype=torch.float64),
    }
    present = (torch.arange(molecules.MOST) < torch.tensor([[29], [7], [12]])).contiguous()
    turn = torch.linalg.qr(torch.randn(3, 3, generator=own, dtype=torch.float64))[0]
    molecules.CENTRES = molecules.CENTRES.double()
    out = network(inputs, t, present={"kind": present})
    moved = {**inputs, "x": inputs["x"] @ turn + torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)}
    other = network(moved, t, present={"kind": present})
    assert torch.allclose(other["x"], out["x"] @ turn, atol=1e-9)
    assert torch.allclose(other["kind"], out["kind"], atol=1e-9)
    assert float(out["x"].sum(1).abs().max()) < 1e-9
    assert not bool(out["x"][~present].any())
