"""Error messages of training, distillation and tuning: one line with the value, what was expected, what to do."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bfn
from bfn import training
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.networks.mlp import MLP
from bfn.training.building import Muon, open_recipe_data
from bfn.training.distillation import distill
from bfn.training.settings import Settings, read_settings, recipe
from bfn.training.tuning.calibration import calibrate, search_grid
from bfn.training.tuning.objectives import EndPoint, EnergyDistance, FeatureDistance, NGramDivergence
from bfn.training.tuning.tables import TableParameters, tune
from planned import make_table

TINY = {"data": "digits", "network": {"name": "mlp", "width": 8}, "flow": "continuous", "head": "data"}
SETTINGS = {
    "stpes=3": "unknown setting 'stpes'; did you mean 'steps'?",
    "steps=0": "steps=0: expected a whole number from 1 to 1,000,000,000",
    "steps=10000000000": "0: expected a whole number from 1 to 1,000,000,000",
    "grad_clip=-1": "grad_clip=-1.0: expected at least 0",
    "steps=1.5": "steps 1.5: expected a whole number",
    "steps=many": "steps 'many': expected a whole number",
    "lr=.nan": "lr nan: expected a finite number",
    "lr=-1": "lr=-1.0: expected a positive number",
    "compile=1": "compile 1: expected true or false",
    "start=3": "start 3: expected a string",
    "optimiser=sgd": "optimiser 'sgd': expected one of adamw, muon",
    "betas=0.9": "betas 0.9: expected a list",
    "ema_decay=1.5": "ema_decay=1.5: expected a share from 0 to 1",
    "condition_dropout=1": "condition_dropout 1: expected an object",
    "accumulate=3": "batch=64: not a multiple of accumulate=3",
    "network=7": "network=7: expected a name, or a mapping with a 'name'",
    "lr.x=7": "lr.x: only data, network, flow, head, weighting have parameters",
    "lr": "'lr': expected name=value",
}
FILES = {
    "a.yaml": ("lr: [1", "a.yaml: not YAML"),
    "b.toml": ("lr = ", "b.toml: Invalid value"),
    "c.json": ("{", "c.json: Expecting"),
    "d.ini": ("lr=1", "d.ini: expected a name that ends in .yaml, .toml or .json"),
    "e.yaml": ("just words", "e.yaml: expected settings as 'name: value' lines"),
    "f.yaml": ("lr: 1", "f.yaml: has no 'data': say which to use"),
    "g.yaml": ("a: !!python/object/apply:os.system [true]", "g.yaml: not YAML"),
    "none.yaml": (None, "no such file"),
}
PARTS = [
    ({"flow": "wavy"}, "flow 'wavy': expected one of continuous, discrete"),
    ({"flow.beta_1": 1.0}, "flow.beta_1: a continuous flow has sigma_1"),
    ({"network.widht": 3}, "network unet: got an unexpected keyword argument 'widht'"),
    ({"head": "logits"}, "LogitsHead(): it is for discrete data, the flow is continuous"),
    ({"weighting.men": 3}, "weighting edm: has no 'men'; it has mean, std, data_std"),
    ({"data": "no/such/place"}, "no/such/place: no such file or folder"),
    ({"network.name": "mlq"}, "did you mean 'mlp'"),
]
RECIPE_DATA = [
    ("t.txt", {"binarise": True}, "discrete", "t.txt is text, which take length"),
    ("t.txt", {}, "continuous", "is text: give flow discrete, not continuous"),
    ("t.txt", {"length": 9999}, "discrete", "data.length=9999: the text's train part has"),
    ("images.npy", {"levels": 300}, "discrete", "levels=300: expected 2 to 256"),
    ("images.npy", {"binarise": "static"}, "discrete", "binarise='static': expected true, false, a seed, or 'dynamic'"),
    ("images.npy", {"colour": 1}, "discrete", "is images, which take levels, centres, binarise, labels, flip, whole"),
    ("points.npz", {}, "discrete", "has samples of x: give flow continuous, not discrete"),
    ("points.npz", {"levels": 4}, "continuous", "is records, which take sequence, parts"),
]


def mixture():
    return GaussianMixture(torch.randn(5, 2, dtype=torch.float64), stds=torch.full((5,), 0.15))


def points(**options):
    return bfn.BFN(MLP(2, width=8, n_blocks=1, **options), ContinuousFlow(0.1), "data", (2,))


def fit(data=None, model=None, **options):
    return lambda: bfn.fit(model or points(), torch.zeros(9, 2) if data is None else data, 3, progress=False, **options)


def taught(model=None, **options):
    return lambda: distill(model or points(), **options)


def tuned(objective=None, nfe=4, **options):
    return lambda: tune(mixture(), nfe, objective or EndPoint(20), **options)


NOISE = bfn.BFN(MLP(2, width=8), mixture().flow, "noise", (2,))
JOINT = JointMixture({"x": (torch.zeros(1, 2), torch.ones(1, 2))}, {"kind": torch.tensor([[0.5, 0.5]])},
                     flows={"x": ContinuousFlow(0.02), "kind": DiscreteFlow(2)})  # fmt: skip
STRINGS = StringSet(torch.tensor([[0, 1]]), n_classes=3)
FRAME = pd.DataFrame({"a": [1.0, 2.0]})
CLASSES = torch.zeros(5, 3, dtype=torch.int64)
CALLS = {
    # fit
    "no data": (fit(torch.zeros(0, 2)), "no data: expected at least 1 sample"),
    "shape": (fit(torch.zeros(5, 3)), "data of shape (5, 3)"),
    "labels": (fit(label=torch.zeros(7)), "label of shape (7,): expected a class for each of the 9 samples"),
    "no labels": (fit(label=-torch.ones(9, dtype=torch.int64)), "label: all are -1, no class"),
    "condition": (fit(condition=torch.zeros(9)), "condition of type Tensor: expected values by name"),
    "weighting": (fit(weighting="cross-entropy"), "it is for classes"),
    "batch": (fit(batch=0), "batch=0: expected a whole number from 1 to"),
    "grad_clip": (fit(grad_clip=float("-inf")), "grad_clip -inf: expected a finite number"),
    "frame": (fit(FRAME), "a of shape (): the model's data are (2,)"),
    "frame condition": (fit(FRAME, condition=torch.zeros(2, 2)), "of a table expected the names of its columns"),
    "no weights": (fit(model=bfn.BFN(lambda x, t: x, ContinuousFlow(), "data", (2,))), "has no weights to train"),
    "vector for Muon": (lambda: Muon([nn.Parameter(torch.zeros(3))]), "shape (3,) among the matrices"),
    "recipe": (lambda: recipe("text9"), "did you mean 'text8'?"),
    # distill
    "exact teacher": (taught(mixture()), "an exact model has no network"),
    "noise teacher": (taught(NOISE), "a network that predicts noise"),
    "few paths": (taught(paths=10), "at least a batch of 128 paths"),
    "teacher": (taught(teacher=torch.zeros(2)), "teacher of type Tensor: expected settings of a sample"),
    "student": (taught(student=3), "student of type int: expected bfn.BFN"),
    "solvr": (taught(teacher={"solvr": "auto"}), "did you mean 'solver'"),
    "noisy teacher": (taught(teacher={"solver": "fast-sde"}), "a teacher with noise"),
    "other flow": (taught(mixture(), student=points()), "expected ContinuousFlow"),
    "match": (taught(match=-1), "match=-1: expected a number from 0"),
    # tune
    "one call": (tuned(nfe=1), "nfe=1: a table of one call has no step to tune"),
    "steps": (tuned(steps=0), "steps=0: expected at least 1"),
    "starts": (tuned(starts=5), "starts=5: expected at least 300"),
    "part": (tuned(part=0), "part=0: expected at least 1"),
    "teacher_nfe": (tuned(nfe=20), "teacher_nfe=20: expected more calls than the 20 of the table"),
    "few samples": (tuned(FeatureDistance(lambda x: x, torch.randn(9, 2), mixture().flow), batch=2),
                    "batch=2: expected at least 3"),
    "stretching start": (tuned(EndPoint(20, start="euler-ode"), steps=2, batch=8, held_out=8),
                         "stretches the state or steps back: tune from a multistep solver"),
    "noisy start": (tuned(EndPoint(20, start="sde-bfn-solver++2"), steps=2, batch=8, held_out=8), "a start with noise"),
    "joint": (lambda: tune(JOINT, 4, EndPoint(20), steps=1, batch=8, held_out=8), "use the objective SearchedGrid"),
    "stages": (lambda: TableParameters(DiscreteFlow(5), make_table(DiscreteFlow(5), "bfn-solver2-singlestep", 6)),
               "tune from a multistep solver"),
    "noisy grid": (lambda: search_grid(STRINGS, 4, "fast-sde"), "'fast-sde' draws noise"),
    "staged grid": (lambda: search_grid(STRINGS, 4, "bfn-solver2-singlestep"), "more than one call in a step"),
    "reference": (lambda: search_grid(mixture(), 4, reference=0), "reference=0: expected a whole number from 1"),
    "short texts": (lambda: NGramDivergence(CLASSES, DiscreteFlow(3)), "expected texts of at least n=4 symbols"),
    "one datum": (lambda: FeatureDistance(lambda x: x, torch.zeros(1, 2), ContinuousFlow()),
                  "1 data: expected at least 2"),
    "few to calibrate": (lambda: calibrate(mixture(), EnergyDistance(torch.randn(50, 2), ContinuousFlow()), n=5),
                         "n=5: the objective needs at least 20 samples"),
    "falling calls": (lambda: calibrate(mixture(), EndPoint(20), (3, 2)), "expected increasing numbers from 1 up"),
    "one trial": (lambda: calibrate(mixture(), EndPoint(20), trials=1), "trials=1: expected a whole number from 3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "t.txt").write_text("hello world " * 50)
    np.save(folder / "images.npy", np.tile(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (40, 1, 1)))
    np.savez(folder / "points.npz", x=np.random.default_rng(0).normal(size=(40, 2)), label=np.arange(40) % 3)
    return folder


def check(call, message):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments(name):
    check(*CALLS[name])


@pytest.mark.parametrize("change", SETTINGS)
def test_wrong_settings(change):
    check(lambda: Settings.from_dict(TINY).override([change]), SETTINGS[change])


@pytest.mark.parametrize("name", FILES)
def test_wrong_files_of_settings(name, tmp_path):
    text, message = FILES[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    check(lambda: read_settings(tmp_path / name), message)


@pytest.mark.parametrize(("change", "message"), PARTS)
def test_wrong_parts_leave_no_run(settings, change, message, tmp_path):
    check(lambda: training.train(settings.override(change), tmp_path / "run", progress=False), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "options", "flow", "message"), RECIPE_DATA)
def test_wrong_data_of_recipes(files, name, options, flow, message):
    check(lambda: open_recipe_data({"name": str(files / name), **options}, flow, "train"), message)
