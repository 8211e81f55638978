"""Error messages of controls: one line each, for every value that would be ignored or misunderstood otherwise."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bfn
import tiny
from bfn.controls.classes import Allowed
from bfn.controls.guidance import Guidance, Steering
from bfn.controls.known import Known
from bfn.controls.particles import Particles
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import ProductOfCategoricals
from messages import refused

X = torch.zeros(3, dtype=torch.float64)
IMAGE, PIXELS = torch.zeros(1, 8, 8), torch.ones(1, 8, 8, dtype=torch.bool)
TEXT, LETTERS = torch.zeros(20, dtype=torch.int64), torch.ones(20, dtype=torch.bool)
CLASSES, FIRST = torch.tensor([2, 0, 0]), torch.tensor([True, False, False])
ALLOWED = torch.tensor([[True, True, False, True], [True, False, True, False], [False, False, True, False]])
LABEL = torch.zeros(2, dtype=torch.int64)
PROBS = torch.full((3, 4), 0.25, dtype=torch.float64)


def images() -> bfn.Model:
    return tiny.build("images")


def text() -> bfn.Model:
    return tiny.build("text")


def numbers() -> bfn.Model:
    return GaussianMixture(torch.zeros(1, 3, dtype=torch.float64), stds=torch.full((1, 3), 0.2))


def classes() -> bfn.Model:
    return ProductOfCategoricals(PROBS, beta_1=8.0)


def joint() -> bfn.Model:
    return JointMixture({"x": (X[None], torch.full((1, 3), 0.2))}, {"kind": PROBS[None]})


def score(probs: torch.Tensor) -> torch.Tensor:
    return probs.flatten(1).sum(1)


def with_controls(*controls: bfn.Control) -> dict[str, Any]:
    return {"solver": bfn.Request("fast-sde", 8, controls=controls)}


KNOWN = {"known": CLASSES, "known_mask": FIRST}

MESSAGES: list[tuple[Callable[[], bfn.Model], dict[str, Any], str]] = [
    # known data: shapes, types and values
    (images, {"known": IMAGE, "known_mask": PIXELS[:, :5]}, "known_mask of shape (1, 5, 8): expected (1, 8, 8) or"),
    (images, {"known": IMAGE, "known_mask": torch.tensor(True)}, "known_mask of shape (): expected (1, 8, 8) or (2, 1"),
    (images, {"known": IMAGE, "known_mask": PIXELS[0]}, "known_mask of shape (8, 8): expected (1, 8, 8)"),
    (images, {"known": IMAGE[:, :5], "known_mask": PIXELS}, "known of shape (1, 5, 8): expected (1, 8, 8)"),
    (images, {"known": IMAGE, "known_mask": PIXELS.float()}, "known_mask of type torch.float32: expected torch.bool"),
    (images, {"known": IMAGE * torch.nan, "known_mask": PIXELS}, "known: 128 values are NaN or infinite"),
    (text, {"known": TEXT + 27, "known_mask": LETTERS}, "known: classes from 27 to 27: expected 0..26"),
    (images, {"known": IMAGE}, "known_mask=None: known and known_mask go together"),
    (images, {"known_mask": PIXELS}, "known=None: known and known_mask go together"),
    (images, {"known": {"x": IMAGE}}, "known is a mapping: this model's data have no parts"),
    (joint, {"known": X, "known_mask": FIRST}, "known of type Tensor: expected a mapping of parts"),
    (joint, {"known": {"y": X}}, "known for part 'y': expected one of x, kind"),
    (joint, {"known": {"x": X}, "known_mask": {"kind": FIRST}}, "known_mask of part 'kind' without known data"),
    (joint, {"known": {"x": X[:2]}}, "known of part 'x' of shape (2,): expected (3,) or (2, 3)"),
    # known data: options
    (images, {"known_at": "end"}, "known_at='end': expected one of data, path"),
    (images, {"known_at": "path"}, "known_at='path' without known: give known data, or leave it out"),
    (classes, with_controls(Known(CLASSES, FIRST), Known(CLASSES, ~FIRST)), "two controls of the class BoundKnown"),
    # guidance
    (text, {"guidance": 2.0}, "guidance=2: it needs conditions to guide to, such as label; there are none"),
    (images, {"guidance": float("nan"), "label": LABEL}, "guidance=nan: expected a finite scale"),
    (images, {"guidance": "strong", "label": LABEL}, "guidance=strong: expected a finite scale"),
    (images, {"guidance": True, "label": LABEL}, "guidance=True: expected a finite scale"),
    (text, {"guidance": 2.0, "label": LABEL}, "label given to a network without"),
    # steering
    (images, {"steer": lambda x: x.sum()}, "steer returns shape (): expected a differentiable number for each"),
    (images, {"steer": lambda x: x.detach().flatten(1).sum(1)}, "steer returns shape (2,) without a gradient"),
    (images, {"steer": lambda x: 1.0}, "steer returns a float: expected a differentiable number"),
    (images, {"steer": 3.0}, "steer=3.0: expected a function of the predicted data"),
    # temperature
    (classes, {"temperature": 0}, "temperature=0: expected a positive number"),
    (classes, {"temperature": float("inf")}, "temperature=inf: expected a positive number"),
    (classes, {"temperature": "hot"}, "temperature='hot': expected a number"),
    (numbers, {"temperature": 0.9}, "temperature=0.9: it is for classes, and these data are numbers"),
    # allowed classes
    (numbers, {"allowed": ALLOWED}, "allowed: it is for classes, and these data are numbers"),
    (classes, {"allowed": ALLOWED.long()}, "allowed of type torch.int64: expected torch.bool"),
    (classes, {"allowed": ALLOWED[:2]}, "allowed of shape (2, 4): expected (4,) or (3, 4) or (2, 3, 4)"),
    (classes, {"allowed": ALLOWED & ALLOWED[0]}, "allowed has no class at (2,): expected at least one True"),
    (classes, {"allowed": [False] * 4}, "allowed has no class: expected at least one True"),
    (classes, {"allowed": {"kind": ALLOWED}}, "allowed is a mapping: this model's data have no parts"),
    (classes, {"allowed": ALLOWED, **KNOWN}, "known has class 2, which allowed excludes there"),
    (joint, {"allowed": ALLOWED}, "allowed of type Tensor: expected a mapping of parts"),
    (joint, {"allowed": {"sort": ALLOWED}}, "allowed for part 'sort': expected one of x, kind"),
    (joint, {"allowed": {"x": ALLOWED}}, "allowed for part 'x': it is for classes"),
    (joint, {"allowed": {"kind": ALLOWED[0, :3]}}, "allowed for part 'kind' of shape (3,)"),
    # starting data
    (numbers, {"start_from": X}, "start_from without t_start"),
    (numbers, {"start_from": X, "t_start": 0.0}, "t_start=0 with start_from: expected a time in (0, 1)"),
    (numbers, {"start_from": X[:2], "t_start": 0.4}, "start_from: data of shape (2,): expected (3,)"),
    (numbers, {"start_from": X, "t_start": 0.4, "initial": X.expand(2, 3)}, "start_from beside initial"),
    (joint, {"start_from": {"x": X}, "t_start": 0.4}, "start_from: part 'kind' is missing"),
    (joint, {"start_from": X, "t_start": 0.4}, "start_from: packed data of shape"),
    (joint, {"start_from": 3.0, "t_start": 0.4}, "start_from: data of type float: expected a mapping"),
    # noise
    (numbers, {"noise": "frozen"}, "noise='frozen': expected one of fresh, fixed"),
    # particles
    (classes, {"particles": 1, "steer": score}, "particles=1: expected a whole number from 2"),
    (classes, {"particles": 8}, "particles=8 without a condition: give steer, known"),
    (classes, {"particles": 8, "solver": "fast-ode", **KNOWN}, "particles=8 with a solver without noise"),
    (classes, {"particles": 8, "noise": "fixed", **KNOWN}, "particles beside noise='fixed'"),
    (classes, {"particles": Particles(8, must=lambda x: x[:, 0] > 5)}, "none of the 8 particles of 2 of 2 samples"),
    (classes, {"particles": Particles(8, must=lambda x: x[:, 0])}, "must returns torch.int64 (16,): expected a bool"),
    (classes, {"particles": 8, "steer": lambda p: score(p) * torch.nan}, "weights of particles are NaN"),
    (classes, with_controls(Known(CLASSES, FIRST), Particles(4), Particles(8)), "two controls of the class Particles"),
    # options that a solver does not take
    (classes, {"solver": "bfn", "g": 0.5}, "g=0.5: solver 'bfn' has no stochasticity dial"),
    (classes, {"path": "kind"}, "path='kind': this model's parts share one time"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "settings", "fragment"), MESSAGES, ids=[fragment for _, _, fragment in MESSAGES])
def test_wrong_input_gives_one_line(make: Callable[[], bfn.Model], settings: dict[str, Any], fragment: str) -> None:
    request = settings if isinstance(settings.get("solver"), bfn.Request) else {"nfe": 4, **settings}
    refused(re.escape(fragment), make().sample, 2, **request)


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: Guidance(2.0, rescale=1.5), "rescale=1.5: expected a share from 0 to 1"),
        (lambda: Steering(score, scale=float("inf")), "scale=inf of steer: expected a finite factor"),
        (lambda: Steering(score, scale="much"), "scale='much': expected a number"),
        (lambda: Particles(8, draws=-1), "draws=-1: expected a whole number from 0"),
        (lambda: Particles(8, resample_below=2.0), "resample_below=2.0: expected a share from 0 to 1"),
        (lambda: Particles(8, must=True), "must=True: expected a function of samples"),
    ],
)
def test_a_control_checks_its_own_values(make: Callable[[], object], fragment: str) -> None:
    refused(re.escape(fragment), make)


def test_controls_of_the_same_class_that_agree_are_combined() -> None:
    even, low = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    request = bfn.Request("bfn", 4, controls=(Allowed(even), Allowed(low)))
    assert bool((classes().sample(20, request, seed=0).x == 0).all())
