"""The example that trains diffusers' U-Net runs from end to end."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("diffusers")


def test_the_example_trains_saves_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "diffusers_unet.py"
    spec = importlib.util.spec_from_file_location("diffusers_unet", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(["--steps", "2", "--batch", "8", "--out", str(tmp_path / "pipeline")]) == 0
    assert {"model_index.json", "samples.png", "scheduler", "unet"} <= {
        p.name for p in (tmp_path / "pipeline").iterdir()
    }
    assert "10 network calls" in capsys.readouterr().out
