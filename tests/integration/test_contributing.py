"""The recipes of CONTRIBUTING.md run: a model made of them is trained, stored, loaded, sampled and judged."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import torch

import bfn
from bfn.core.control import OPTIONS
from bfn.core.grids import GRIDS
from bfn.core.heads import HEADS
from bfn.core.schedules import SCHEDULES
from bfn.data.sources import SOURCES
from bfn.networks import NETWORKS
from bfn.quality.judge_choice import METRICS
from bfn.solvers import SOLVERS

ROOT = Path(__file__).parents[2]
REGISTRIES: list[MutableMapping[str, Any]] = [
    SOLVERS, GRIDS, SCHEDULES, HEADS, NETWORKS, OPTIONS, METRICS, SOURCES,
]  # fmt: skip


@pytest.fixture(scope="module")
def recipes() -> Iterator[dict[str, Any]]:
    """The names that the blocks define, with all registries as they were before once the tests are over."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "contributing"}
    before = [dict(registry) for registry in REGISTRIES]
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    assert all(len(registry) == len(old) + 1 for registry, old in zip(REGISTRIES, before, strict=True))
    yield namespace
    for registry, old in zip(REGISTRIES, before, strict=True):
        for name in set(registry) - set(old):
            del registry[name]


@pytest.fixture(scope="module")
def model(recipes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> bfn.BFN:
    """A model of the new schedule, head and network, trained on a circle, stored and loaded."""
    torch.manual_seed(0)
    flow = bfn.ContinuousFlow(schedule=recipes["LinearSchedule"](50.0))
    trained = bfn.BFN(recipes["Shallow"](2), flow, predicts="residual", data_shape=(2,))
    optimiser = torch.optim.Adam(trained.parameters(), lr=2e-2)
    for _ in range(1000):
        loss = trained.loss(circle(256)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    directory = tmp_path_factory.mktemp("model")
    trained.save(directory)
    loaded = bfn.load(directory)
    assert isinstance(loaded.network, recipes["Shallow"])
    assert (loaded.flow, loaded.head) == (trained.flow, trained.head)
    for name, value in trained.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    return loaded


def circle(n: int) -> torch.Tensor:
    angle = 2 * torch.pi * torch.rand(n, 1)
    return torch.cat([angle.cos(), angle.sin()], 1)


def test_the_solver_is_bfn_solver2_under_another_name(recipes: dict[str, Any]) -> None:
    """The same rows, on any grid."""
    strings = bfn.BFN(lambda theta, t: theta, bfn.DiscreteFlow(5), predicts="logits", data_shape=(3,))
    ours = bfn.solvers.plan(strings, "adams-bashforth", 6, grid="cosine", t_start=0.1).table
    theirs = bfn.solvers.plan(strings, "bfn-solver2", 6, grid="cosine", t_start=0.1).table
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        assert (a.t, a.a, a.c) == (b.t, b.a, b.c)
        assert a.b == pytest.approx(b.b)
    assert "adams-bashforth" in bfn.solvers.names("discrete")


def test_a_model_of_them_is_stored_loaded_sampled_and_judged(model: bfn.BFN) -> None:
    out = model.sample(500, "adams-bashforth", nfe=12, grid="cosine:0.95", t_start=0.0, seed=0)
    assert out.nfe == 12
    assert out.times[-1] == pytest.approx(0.95)
    judge = bfn.quality.judge_for(model, "radius", circle(400))
    figures = judge(out.x)
    assert figures["radius"].low < figures["radius"].value < 0.15
    assert judge(torch.randn(500, 2))["radius"].low > figures["radius"].high
    assert judge.real(200)["radius"].value < 1e-6


def test_the_control_mirrors_the_second_half_of_the_samples(recipes: dict[str, Any]) -> None:
    model = bfn.exact.GaussianMixture([[0.5], [-0.5]], stds=[0.1, 0.1])
    for x in (
        model.sample(6, "fast-ode", 8, seed=0, antithetic=True).x,
        model.sample(6, bfn.Request("fast-ode", 8, controls=(recipes["Antithetic"](),)), seed=0).x,
    ):
        torch.testing.assert_close(x[3:], -x[:3])


PLUGIN = """
import torch
from dataclasses import dataclass
from bfn.core.heads import DataHead

@dataclass(frozen=True)
class MirrorHead(DataHead):
    def output(self, flow, raw, u, level):
        return super().output(flow, -raw, u, level)

def mirror() -> int:
    "Print a word."
    print("mirrored")
    return 0
"""


def test_an_installed_package_adds_a_head_and_a_command(tmp_path: Path) -> None:
    """In a process of its own, since names of installed packages are read once."""
    entries = re.findall(
        r"```toml\n\[project.entry-points.\"(.*?)\"\]\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S
    )
    ((group, lines),) = entries
    (tmp_path / "mirror_heads.py").write_text(PLUGIN)
    folder = tmp_path / "mirror_heads-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mirror-heads\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n" + lines.replace('"', ""))
    code = (
        "import sys, torch, bfn; assert 'mirror_heads' not in sys.modules;"
        "model = bfn.BFN(torch.nn.Linear(2, 2), bfn.ContinuousFlow(0.1), 'mirror', (2,));"
        "print(type(model.head).__name__); from bfn.cli import main; sys.exit(main(['mirror']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["MirrorHead", "mirrored"], run.stderr


def test_the_data_set_is_fetched_and_read(
    recipes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFN_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    text = bfn.data.load("licence", "all", progress=False)
    assert isinstance(text, bfn.data.Text)
    assert text.tokenizer.decode(text[:60].to_classes()[None])[0].strip().startswith("apache license")
