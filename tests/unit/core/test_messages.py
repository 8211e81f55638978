"""Wrong input to the core: one line with the value and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bfn
import tiny
from bfn.core import grids, registry
from bfn.core.conditions import Classes, Condition, Lengths, labels_of
from bfn.core.info import ErrorCurve, ModelInfo, Spread
from bfn.core.losses import Weighting, squared_error
from bfn.core.plain import from_plain
from bfn.exact.joint import JointMixture

NUMBERS, CLASSES = bfn.ContinuousFlow(sigma_1=0.1), bfn.DiscreteFlow(n_classes=4, beta_1=2.0)
PREDICTS, SHAPES = {"x": "data", "y": "data", "kind": "logits"}, {"x": (2,), "y": (), "kind": (3,)}
SHARES = Classes(("circle", "square", "star"), (0.7, 0.2, 0.1))
NAN, ZEROS = float("nan"), torch.zeros(2, 3)


def number_model(network: Callable[..., Any] = lambda mu, t: mu, predicts: str = "data", **facts: Any) -> bfn.BFN:
    return bfn.BFN(network, NUMBERS, predicts, (3,), ModelInfo(**facts))


def class_model(network: Callable[..., Any] = lambda theta, t: torch.tanh(2 * theta), beta_1: float = 2.0) -> bfn.BFN:
    return bfn.BFN(network, bfn.DiscreteFlow(4, beta_1), "logits", (3,))


def text_model() -> bfn.BFN:
    info = ModelInfo(lengths=Lengths.of(torch.tensor([1, 5, 8, 12])))
    return bfn.BFN(lambda theta, t: theta, bfn.DiscreteFlow(5), "logits", (12,), info)


def joint_model(predicts: Any = PREDICTS, shape: Any = SHAPES) -> bfn.BFN:
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.02), y=bfn.ContinuousFlow(0.05), kind=bfn.DiscreteFlow(4))
    return bfn.BFN(lambda x, t: x, flow, predicts, shape)


def mixture(**options: Any) -> JointMixture:
    return JointMixture({"x": ([[0.0], [1.0]], [[0.3], [0.2]])}, {"kind": [[0.9, 0.1], [0.2, 0.8]]}, **options)


class Linear(nn.Module):
    def forward(self, inputs, t, label=None, gap=None, kind=None):
        return inputs


def conditional() -> bfn.BFN:
    kinds = Condition.of(torch.tensor([0, 1]), ("ring", "chain"))
    known = {"gap": Condition.of(torch.linspace(0, 1, 50)), "kind": kinds}
    return bfn.BFN(Linear(), NUMBERS, "data", (2,), ModelInfo(conditions=known))


def joint_data(**change: Any) -> dict[str, Any]:
    good = {"x": torch.zeros(2, 2), "y": torch.zeros(2), "kind": torch.zeros(2, 3, dtype=torch.int64)}
    return {name: value for name, value in {**good, **change}.items() if value is not None}


def nan_at_the_third_call(inputs: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return inputs * (NAN if float(t[0]) > 0.45 else 1.0)


CALLS = [
    # flows
    (lambda: class_model().loss(torch.tensor([[0, 4, 0]])), "classes from 0 to 4: expected 0..3"),
    (lambda: class_model().loss(torch.zeros(1, 3)), "torch.float32: discrete data are integer classes"),
    (lambda: number_model().loss(torch.tensor([[0.0, NAN, 0.0]])), "1 values are NaN or infinite"),
    (lambda: number_model().loss(torch.zeros(1, 3).long()), "torch.int64: continuous data are floats"),
    (lambda: bfn.DiscreteFlow(n_classes=1), "n_classes=1: a discrete variable needs at least 2 classes"),
    *[(lambda c=c: bfn.DiscreteFlow.with_separation(27, c), f"c={c}: expected a positive") for c in (0, -3, NAN)],
    (lambda: bfn.ContinuousFlow.for_data(torch.arange(9.0) + 100), "subtract the mean"),
    *[(lambda s=s: bfn.ContinuousFlow(sigma_1=s), f"sigma_1={s}: expected a standard") for s in (0, 1, -0.5, NAN)],
    *[(lambda b=b: bfn.DiscreteFlow(3, beta_1=b), f"beta_1={b}: expected a positive") for b in (0, -1, math.inf, NAN)],
    (lambda: class_model(beta_1=1e300).sample(1, nfe=2), "a solver's coefficient 1.6e+150: expected at most 1e+30"),
    # grids
    (lambda: grids.parse("uniform:3")(NUMBERS, 3, 0.0), "t_end=3: expected a time after"),
    (lambda: grids.parse("information")(CLASSES, 4, 0.2), "the model has no error curve"),
    (lambda: grids.Information(ErrorCurve((0.0,), (0.0,)))(CLASSES, 4, 0.2), "0 everywhere"),
    # heads and losses
    (lambda: bfn.BFN(nn.Identity(), NUMBERS, "nois", (3,)), "predicts='nois': expected one of noise, data, "),
    (lambda: bfn.BFN(nn.Identity(), NUMBERS, "logits", (3,)), "'logits' is for discrete data: continuous data take"),
    (lambda: number_model().loss(ZEROS, torch.tensor([0.1, 1.2])), "expected times in [0, 1]"),
    (lambda: number_model().loss(ZEROS, n_steps=0), "n_steps=0: expected at least 1 step"),
    (lambda: number_model(lambda mu, t: mu[:, :1]).loss(ZEROS), "has shape (2, 1): expected (2, 3)"),
    (lambda: squared_error(class_model(), ZEROS.long(), ZEROS[:, 0], eps=ZEROS), "eps of shape (2, 3): expected noise"),
    (lambda: number_model(value_range=(-1.0, 1.0)).loss(torch.full((1, 3), 255.0)), "made for -1 to 1; scale"),
    (lambda: number_model().loss(ZEROS, n_steps=2, weighting="edm"), "weighting beside t or n_steps"),
    # facts
    (lambda: Spread(2.0, 1.0), "expected 0 < std <= widest"),
    (lambda: ErrorCurve((0.0, 1.0), (1.0,)), "2 times, 1 errors: expected as many"),
    (lambda: ErrorCurve((0.0, 1.0), (1.0, -0.5)), "not negative"),
    (lambda: ErrorCurve((0.0,), (math.inf,)), "finite"),
    (lambda: ErrorCurve((0.0,), (0.0,)).even_schedule(NUMBERS), "0 everywhere: there is no information to share"),
    (lambda: ErrorCurve.from_bins({"t": [0.5]}), "expected lists of numbers t and squared_error"),
    (lambda: number_model(bfn.networks.MLP(3, n_labels=3), classes=Classes.equal(2)), "the network was made for 3"),
    (lambda: ModelInfo(clases=None), "did you mean 'classes'"),
    (lambda: number_model(value_range=(1.0, -1.0)), "value_range (1.0, -1.0): expected (lowest, highest)"),
    # conditions
    (lambda: number_model(Linear()).sample(2, nfe=1, condition={"colour": 1.0}), "Linear takes no argument 'colour'"),
    (lambda: joint_model().sample(2, nfe=2, lengths=3), "lengths=3: the parts x, y, kind of this model have none"),
    # joint
    (bfn.JointFlow, "expected at least one named part"),
    (lambda: bfn.JointFlow(x=bfn.JointFlow(y=NUMBERS)), "expected a flow of one kind of data"),
    (lambda: joint_model(shape={"x": (2,)}), "expected a shape for each"),
    (lambda: joint_model({"x": "data"}), "expected a head for each"),
    (lambda: joint_model({"x": "logits", "y": "data", "kind": "logits"}), "for discrete data"),
    (lambda: joint_model().loss(torch.zeros(2, 5)), "expected (batch, 6), or a mapping of parts"),
    (lambda: bfn.JointFlow(x=NUMBERS, times="seperate"), "times='seperate': expected one of together, separate"),
    (lambda: mixture().loss(mixture().sample_data(2), torch.rand(2, 2)), "expected one time a sample, (2,)"),
    (lambda: mixture(times="separate").loss(mixture().sample_data(2), torch.rand(2, 3)), "or one a part, (2, 2)"),
    # sampling
    (lambda: class_model().sample(2, bfn.Request(), nfe=3), "nfe beside a Request"),
    (lambda: class_model().sample(2, bfn.Request(), temperature=2), "temperature beside a Request"),
    (lambda: class_model().sample(0, "bfn", 4), "n=0: expected at least 1 sample"),
    (lambda: number_model().sample(2, "bfn", 3, clip=(1, -1)), "clip=(1, -1): expected (lowest, highest)"),
    (lambda: number_model(predicts="noise").sample(1, "bfn-solver1", 4, t_start=0.0), "is 0/0 there"),
    (lambda: number_model().sample(1, "bfn-solver++2", 4, t_start=0.0), "'bfn-solver++2' extrapolates in log s"),
    (lambda: class_model(nan_at_the_third_call).sample(2, "bfn", 5), "at call 2 (t=0.5) has NaN"),
    # decoding
    (lambda: tiny.build("images").decode(torch.zeros(2, 8, 8)), "samples of shape (2, 8, 8): expected (n, 1, 8, 8)"),
    (lambda: tiny.build("images").decode(torch.zeros(2, 3, 8, 8)), "samples of shape (2, 3, 8, 8): expected (n, 1"),
    (lambda: tiny.build("text").decode(torch.full((2, 20), 99)), "samples: classes from 99 to 99"),
    (lambda: tiny.build("text").decode("cat"), "samples='cat': expected numbers, an array"),
    (lambda: joint_model().decode({"x": torch.zeros(2, 2, 1)}), "part 'x' of samples of shape (2, 2, 1)"),
    (lambda: tiny.build("images").codec.prompt("a", 3), "prompt='a': the samples of this model are images, not text"),
    (lambda: tiny.build("images").encode(torch.zeros(2, 8, 8)), "expected uint8 (n, height, width, channel)"),
    # plain
    (lambda: from_plain(bfn.Schedule, {"name": "tabulated", "times": [0], "betas": [0]}, "schedule"),
     "schedule tabulated: 1 times, 1 betas: expected as many"),
    (lambda: from_plain(bfn.Schedule, {"name": "quadratic"}, "schedule"), "schedule quadratic: has no 'beta_1'"),
    (lambda: from_plain(tuple[float, float], [1.0], "range"), "range [1.0]: expected 2 values"),
    (lambda: from_plain(float, "x", "scale"), "scale 'x': expected a finite number"),
    (lambda: bfn.Request.from_options(steer=lambda x: x).key(), "a request with a function has no key"),
    (lambda: registry.registry("solver").find("fast"), "solver 'fast': expected one of bfn, "),
    (lambda: registry.registry("head").name_of(int), "head int: only noise, data"),
    (
        lambda: registry._load(SimpleNamespace(name="head.mine", value="missing.package:Head", module="missing.package",
                                               attr="Head", dist=SimpleNamespace(name="their-package"))),
        "plugin 'head.mine' of the package their-package cannot be imported",
    ),
]  # fmt: skip

TABLES = [
    ((0, 0.5, 1), (0, 2), "3 times, 2 betas: expected as many, at least two"),
    ((0.1, 1), (0, 1), "times from 0.1 to 1: expected a table from 0 to 1"),
    ((0, 1), (0.5, 1), "betas from 0.5 to 1: expected them from 0 to a finite"),
    ((0, 0.5, 1), (0, NAN, 1), "betas[1]=nan after 0: betas must increase"),
    ((0, 0.5, 0.5, 1), (0, 1, 2, 3), "times[2]=0.5 after 0.5: times must increase"),
    (("a", 1), (0, 1), "times: expected a list of numbers"),
]

GRID_NAMES = [
    ("karas", "did you mean 'karras'"),
    ("paper:3", "'paper' takes no number"),
    ("karras:7:8", "'karras' takes rho"),
    ("power:x", "expected a positive number after the colon, not 'x'"),
    ("karras:inf", "expected a positive number"),
]

WEIGHTINGS = [
    ("emd", "weighting='emd': expected one of bound, importance, min-snr, edm, cross-entropy; did you mean"),
    ("joint", "weighting='joint': expected one of bound"),
    ("cross-entropy", "it is for classes"),
]

LABELS = [
    ("sqare", "did you mean 'square'"),
    (3, "expected one of the 3 classes circle, square, star"),
    ([0, 1], "one for each of the 3"),
    (torch.zeros(3), "expected whole numbers"),
    ([True, False, True], "expected whole numbers"),
]

CONDITIONS = [
    ({"condition": {"gpa": 1.0}}, "condition 'gpa': this model's are gap, kind; did you mean 'gap'?"),
    ({"condition": {"gap": 9.0}}, "condition gap=9: the data that the model was made for have 0 to 1"),
    ({"condition": {"gap": [1.0, 2.0]}}, "condition gap of shape (2,): expected () or (3,)"),
    ({"condition": {"kind": "rings"}}, "expected one of ring, chain; did you mean 'ring'?"),
    ({"label": 1, "condition": {"label": 1}}, "label beside condition"),
]

LENGTHS = [
    ({"lengths": 0}, "lengths from 0 to 0: expected 1 to 12"),
    ({"lengths": [1, 2]}, "lengths of shape (2,): expected a whole number, or one each of the 3"),
    ({"lengths": 2, "present": torch.ones(3, 12).bool()}, "present beside lengths"),
    ({"present": torch.ones(3, 5).bool()}, "present of shape (3, 5): expected"),
    ({"present": torch.zeros(3, 12).bool()}, "present: sample 0 has length 0"),
    ({"present": {"x": torch.ones(3, 12).bool()}}, "present is a mapping: this model's data have no parts"),
]

PARTS = [
    ({"y": None}, "part 'y' is missing: expected x, y, kind"),
    ({"z": torch.zeros(2)}, "data for part 'z': expected one of x, y, kind"),
    ({"y": torch.zeros(3)}, "expected as many samples of each part"),
    ({"x": ZEROS}, "part 'x': data of shape (2, 3)"),
]

USUAL = {"solver": "bfn-solver2", "nfe": 4}
OPTIONS = [
    ({"nfe": 0}, "nfe=0: expected at least 1 network call"),
    ({"nfe": 5, "solver": "bfn-solver2-singlestep"}, "nfe=5: this solver makes 2 calls a step; give"),
    ({"solver": "bfn-solvr2"}, "did you mean 'bfn-solver2'"),
    ({"solver": "bfn-solver++2"}, "'bfn-solver++2' is for continuous data: for discrete data take one"),
    ({"grid": "unifrm"}, "did you mean 'uniform'"),
    ({"grid": torch.tensor([0.1, 0.5, 0.4])}, "follows 0.5: expected increasing times"),
    ({"grid": torch.tensor([0.1, 0.5, 0.9])}, "nfe=4: the given grid of 3 times makes 3 calls"),
    ({"t_start": 1.0}, "t_start=1.0: expected a time in [0, 1)"),
    ({"grid": "log-snr", "t_start": 0.0, "solver": "fast-ode"}, "t_start=0: the grid 'log-snr' has no point"),
    ({"g": -1.0, "solver": "fast-sde"}, "g=-1.0: expected a number from 0"),
    ({"nfe": 4.0}, "nfe=4.0: expected a whole number of network calls"),
    ({"grid": [0.1, 0.5], "nfe": None, "t_start": 0.1}, "t_start=0.1 beside a grid of times"),
    ({"grid": [0.3], "nfe": None, "solver": "bfn-solver2-singlestep"}, "expected at least 2 times"),
    ({"solver": "multistep:2"}, "solver='multistep:2': expected multistep:ORDER:COORDINATE"),
    ({"solver": "multistep:2:z"}, "coordinate='z': expected one of s, log s"),
    ({"clip": (-1, 1)}, "only predictions of continuous data can be clipped"),
    ({"initial": ZEROS}, "initial of shape (2, 3): expected (2, 3, 4)"),
    ({"initial": lambda *_: torch.ones(3)}, "initial gives (3,)"),
    ({"solver": "euler-ode", "grid": torch.tensor([0.0, 0.3, 0.5, 1.0])}, "a grid that starts at t = 0"),
    ({"batch": 0}, "batch=0: expected a whole number from 1"),
    ({"batch": 1, "generator": torch.Generator()}, "batch beside a generator"),
    ({"seed": 1, "generator": torch.Generator()}, "seed=1 beside a generator"),
]

PLAIN_WEIGHTINGS = [
    ({"name": "edn"}, "weighting 'edn': expected one of bound, importance, min-snr, edm"),
    ({"name": "edm", "men": 1}, "weighting edm: has no 'men'; it has mean, std"),
    ({"name": "edm", "std": -1}, "std=-1.0, data_std=0.5: expected positive"),
]

TABLE = [
    *CALLS,
    *[(partial(bfn.TabulatedSchedule, times, betas), said) for times, betas, said in TABLES],
    *[(partial(grids.parse, name), said) for name, said in GRID_NAMES],
    *[(partial(number_model().loss, ZEROS, weighting=name), said) for name, said in WEIGHTINGS],
    *[(partial(labels_of, SHARES, label, 3), said) for label, said in LABELS],
    *[(partial(conditional().sample, 3, nfe=1, **options), said) for options, said in CONDITIONS],
    *[(partial(text_model().sample, 3, nfe=1, **options), said) for options, said in LENGTHS],
    *[(partial(joint_model().loss, joint_data(**change)), said) for change, said in PARTS],
    *[(partial(class_model().sample, 2, **{**USUAL, **options}), said) for options, said in OPTIONS],
    *[(partial(from_plain, Weighting, config, "weighting"), said) for config, said in PLAIN_WEIGHTINGS],
]


@pytest.mark.parametrize(("call", "message"), TABLE, ids=[message[:50] for _, message in TABLE])
def test_wrong_input_is_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((bfn.UserError, AttributeError)) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_built_in_entry_that_cannot_be_imported_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError):
        registry._load(EntryPoint("head.mine", "missing.package:Head", registry.GROUP))
