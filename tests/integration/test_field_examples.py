"""The recipes of docs/recipes run from end to end in a small form, and their judges judge."""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_proteins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("proteins").main(["--steps", "2", "--n", "4", "--out", str(tmp_path)]) == 0
    assert "auto, a loop filled in, 5 calls" in capsys.readouterr().out
    assert {"model", "run", "proteins.png"} <= {path.name for path in tmp_path.iterdir()}


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
    assert example("policy").main(["--steps", "2", "--n", "4", "--out", str(tmp_path)]) == 0
    assert "bfn, 20 calls" in capsys.readouterr().out
    assert {"model", "policy.png", "paths.png"} <= {path.name for path in tmp_path.iterdir()}


def test_the_policys_judge_passes_its_expert_and_fails_the_straight_way() -> None:
    policy = example("policy")

    def straight(seen: torch.Tensor) -> torch.Tensor:
        way = seen[:, 2:4] - seen[:, :2]
        return (way / way.norm(dim=1, keepdim=True)).unsqueeze(1).expand(-1, policy.AHEAD, 2)

    def around(seen: torch.Tensor) -> torch.Tensor:
        at, actions = seen[:, :2], []
        via = seen[:, 4:] + torch.tensor([0.0, policy.AROUND])
        for _ in range(policy.AHEAD):
            way = torch.where(at[:, :1] < 0, via, seen[:, 2:4]) - at
            actions.append(way / way.norm(dim=1, keepdim=True).clamp(min=policy.STEP))
            at = at + policy.STEP * actions[-1]
        return torch.stack(actions, 1)

    assert float(policy.rollout(straight, 100, seed=0)[1].float().mean()) < 0.5
    assert bool(policy.rollout(around, 100, seed=0)[1].all())


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
    assert {"voices.png", "chorales.png", "auto.mid", "bfn.mid"} <= {path.name for path in (tmp_path / "out").iterdir()}


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
    assert {"stability.png", "molecules.png", "scaffold.png"} <= {path.name for path in tmp_path.iterdir()}


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
