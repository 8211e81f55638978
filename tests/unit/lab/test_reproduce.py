"""Every experiment end to end on small models: what it measures, says and writes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import bfn
from bfn.quality.judge_choice import judge_for
from bfn_lab import measuring as judged_model
from bfn_lab.by_calls import ETAS, TUNING_SEED, best_etas, bits, share_left
from bfn_lab.measuring import JudgedModel, Wanted, measure_all, samplers_named
from bfn_lab.report import Column, Options
from bfn_lab.reproduce import EXPERIMENTS, reproduce
from bfn_lab.trajectories import final_variance, trajectory_distance

OFFICIAL = Path(__file__).parents[2] / "data" / "official-checkpoints"
TINY = {
    "fid-nfe": Options(n=70, nfe=(2, 3)),
    "sa-nfe": Options(n=6, nfe=(2, 4), ceiling=6),
    "cs-ablation": Options(n=6, nfe=(2, 4)),
    "cs-trajectories": Options(n=3, nfe=(4, 8)),
    "eta-continuous": Options(n=70, nfe=(3,)),
    "eta-discrete": Options(n=6, nfe=(4,)),
    "efficiency": Options(n=6, nfe=(4,)),
    "samples": Options(n=2, nfe=(2,)),
}


@pytest.fixture
def small_world(monkeypatch, text_model, chain_model, image_model):
    """The bundled and exact models replaced by small ones."""
    small = {"text8-plain": text_model, "mnist": image_model, "digits": image_model}
    exact = {"text": chain_model, "images": image_model}
    monkeypatch.setattr(judged_model, "stored", lambda name, forms: small[name])
    monkeypatch.setattr(judged_model, "exact", lambda form, context=2: exact[form])


@pytest.mark.parametrize("name", TINY)
def test_each_experiment_writes_its_report(name: str, small_world, tmp_path) -> None:
    models = ["digits"] if "images" in EXPERIMENTS[name].forms else ["text8-plain"]
    report = reproduce(name, tmp_path, TINY[name], models=models, command=f"bfn reproduce {name}")
    text = report.read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert text.startswith(f"# {EXPERIMENTS[name].title}\n")
    assert f"```sh\nbfn reproduce {name}\n```" in text
    assert f"torch {torch.__version__}" in text
    assert text.count("\n## ") == (3 if name == "samples" else 2)
    assert set(results["on"]) <= {"tiny-text", "tiny-images", "chain"}
    pictures = sorted(tmp_path.glob("*.png"))
    assert bool(pictures) == (name != "efficiency")
    for picture in pictures:
        assert f"]({picture.name})" in text
        assert Image.open(picture).width > 50
    assert "nan" not in text
    if name == "sa-nfe":
        assert "| exact samples of the model | 6 |" in text
        assert "Distance to the limit" in text


def test_orders_writes_slopes_beside_declared_orders(tmp_path) -> None:
    report = reproduce("orders", tmp_path, Options(n=2, nfe=(16, 32, 64)))
    found = json.loads((tmp_path / "results.json").read_text())["on"]
    assert found["continuous"]["bfn-solver++2"]["slope"] == pytest.approx(2, abs=0.25)
    assert found["discrete"]["bfn-solver2-singlestep"]["slope"] == pytest.approx(2, abs=0.25)
    assert found["discrete"]["sde-bfn-solver2"]["slope"] == pytest.approx(2, abs=0.3)
    assert found["discrete"]["sde-bfn-solver1"]["slope"] == pytest.approx(1, abs=0.1)
    assert "as declared" in report.read_text()


def test_the_variance_of_a_single_bayesian_update_is_exact() -> None:
    """From t = 0 the first prediction is the prior mean, so that the update gives beta_1 kappa and no more."""
    flow = bfn.DiscreteFlow(3, 2.0)
    model = bfn.exact.MarkovChain(torch.full((3,), 1 / 3), torch.full((3, 3), 1 / 3), 1, flow=flow)
    table = bfn.solvers.plan(model, "sde-bfn-solver1", 2, grid="uniform", t_start=0.0).table
    assert final_variance(table, flow) == pytest.approx(flow.kappa)


def test_figures_and_chosen_solvers_stand_beside_the_papers(small_world, tmp_path) -> None:
    chosen = ("unipc2", "fast-sde", "bfn-solver2")
    text = reproduce("sa-nfe", tmp_path, Options(n=4, nfe=(10,), beyond=chosen), on=("bundled",)).read_text()
    assert "| *paper* | 66.27 |" in text
    assert "| *paper* | 82.27 |" in text
    assert "`auto`" not in text
    assert "| 10 | 10 | 10 |" in text
    assert "| real data |" in text
    told = text.partition("### Are this library's solvers better than the paper's best?")[2]
    assert "| calls | the paper's best | `unipc2` | `fast-sde` |" in told
    # One of the paper's is measured once, as the paper's.
    assert text.count("| `bfn-solver2` |") == text.count("| `bfn` |")


def test_eta_is_chosen_on_other_samples_than_are_reported(image_model: JudgedModel) -> None:
    options = Options(n=70)
    (sampler,) = samplers_named(["bfn-solver++1"])
    etas, _ = best_etas(image_model, [sampler], [3], options)
    values = {}
    for eta in ETAS:
        (measured,), _ = measure_all(image_model, [Wanted(sampler, Column(3, eta))], options, TUNING_SEED, 70)
        values[eta] = measured.record.measures["frechet"].value
        assert measured.record.seeds == (TUNING_SEED,)
    assert etas == {("bfn-solver++1", 3): min(values, key=lambda eta: values[eta])}


def test_trajectories_fall_together_with_the_step(chain_model: JudgedModel) -> None:
    """The same noise and the same rule: distance 0. Drawn classes: a distance that shrinks with the step."""
    model = chain_model.model
    assert trajectory_distance(model, 3, 8, seed=0, mean_only=True).tolist() == [0.0] * 3
    coarse, fine = (trajectory_distance(model, 8, steps, seed=0).mean().item() for steps in (5, 80))
    assert 0 < fine < 0.7 * coarse


def test_bits_of_an_exact_model_approach_its_entropy(chain_model: JudgedModel) -> None:
    model, generator = chain_model.exact, torch.Generator().manual_seed(0)
    assert model is not None
    x = model.sample_data(200, generator)
    truth = -model.log_prob(x).mean().item() / 20 / math.log(2)
    found = {n: bits(model, x, n, seed=0)["total"] for n in (5, None)}
    # Half of a 95 % interval of 7 degrees of freedom is 2.4 standard errors.
    assert found[None].value == pytest.approx(truth, abs=(found[None].high - found[None].low))
    assert found[5].value > truth


def test_the_share_of_the_widest_direction_that_eta_leaves() -> None:
    """Data x = a v with unit v and a of variance 4: 1 / sqrt(1 + 4 beta(eta)) of its standard deviation is left."""
    flow = bfn.ContinuousFlow()
    a = torch.tensor([2.0, -2.0]).repeat(500)
    real = a[:, None] * torch.tensor([0.6, 0.8])
    fake = SimpleNamespace(judge=SimpleNamespace(held_out=real), model=SimpleNamespace(flow=flow, starts_at_zero=True))
    expected = 1 / math.sqrt(1 + 4 * 1000 / 999 * float(flow.schedule.beta(1e-2)))
    assert f" | {expected:.2f} | " in "\n".join(share_left(fake))


@pytest.mark.parametrize(
    ("name", "case", "options"),
    [("fid-nfe", "cifar10_continuous", Options(n=110, nfe=(2,))), ("sa-nfe", "text8", Options(n=4, nfe=(3,)))],
)
def test_a_published_checkpoint_is_run(name: str, case: str, options: Options, tmp_path, monkeypatch) -> None:
    """Small networks saved as the published files are, all solvers; the judge has other data than the paper's."""

    def judge(model, metric, source):
        assert (metric, source) == (("inception", "cifar10") if case != "text8" else ("text", "text8"))
        real = torch.randint(27, (8, 12)) if case == "text8" else torch.rand(300, *model.data_shape) * 2 - 1
        return judge_for(model, "text" if case == "text8" else "pixels", real)

    monkeypatch.setattr(judged_model, "judge_for", judge)
    settings = json.loads((OFFICIAL / "small-cases.json").read_text())[case]
    report = reproduce(
        name, tmp_path, options, on=("official",), checkpoint=OFFICIAL / f"{case}_ema.pt", settings=settings
    )
    assert f"## The published checkpoint `{case}_ema.pt`" in report.read_text()
    assert report.read_text().count("\n## ") == 1
