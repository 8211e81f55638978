"""Error messages of interop: one line that names the value, what was expected and what to do."""

import copy
import json
from functools import reduce
from pathlib import Path

import pytest
import torch

import bfn
from bfn.core.plain import StorageError
from bfn.interop.official import configuration, convert, load_official
from bfn.interop.variance_preserving import VariancePreservingHead, VariancePreservingSchedule

pytest.importorskip("diffusers")
pytest.importorskip("huggingface_hub")
from bfn.interop import hub
from bfn.interop.diffusers import BFNNetwork, BFNPipeline, BFNTextPipeline
from bfn.interop.diffusers.schedulers import BFNScheduler, DiscreteBFNScheduler, VPSolverScheduler

DATA = Path(__file__).parents[2] / "data" / "official-checkpoints"
SETTINGS = json.loads((DATA / "small-cases.json").read_text())


def pipeline(**options):
    unet = {"name": "unet", "in_channels": 1, "channels": 8, "multipliers": [1], "n_blocks": 1, "attention_levels": []}
    return lambda: BFNPipeline(BFNNetwork(unet, [1, 8, 8]), BFNScheduler())(2, 3, **options)


def scheduler(*, step=None, seen=False, solver="auto", **options):
    """Make a scheduler with 10 calls, and take a step at one of its timesteps, by number, or at any other time."""

    def act():
        own = DiscreteBFNScheduler(5, solver=solver)
        own.set_timesteps(**options or {"num_inference_steps": 10})
        sample = torch.zeros(4, 6, 5)
        if seen:
            own.step(sample, own.timesteps[0], sample)
        own.step(sample, own.timesteps[step] if step < 10 else step, sample)

    return act


def drawing(solver):
    own = DiscreteBFNScheduler(2, solver=solver)
    own.set_timesteps(4)
    own.step(torch.zeros(4, 6, 2), own.timesteps[0], torch.zeros(4, 6, 2), generator=[torch.Generator()] * 4)


def official(case, *place, value):
    """Read original settings with one value changed."""
    settings = copy.deepcopy(SETTINGS[case])
    reduce(lambda part, name: part[name], place[:-1], settings)[place[-1]] = value
    return lambda: configuration(settings)


def model(flow, predicts, shape, network=torch.nn.Identity()):  # noqa: B008
    return bfn.BFN(network, flow, predicts, shape)


NUMBERS, CLASSES = (bfn.ContinuousFlow(), "data", (1, 8, 8)), (bfn.DiscreteFlow(3), "logits", (6,))
TEXT = BFNNetwork({"name": "mlp", "in_features": 6, "n_classes": 3, "width": 8}, [6])
MESSAGES = [
    (pipeline(output_type="jpeg"), "output_type='jpeg': expected one of pil, np, pt, latent"),
    (pipeline(callback_on_step_end_tensor_inputs=["prompt_embeds"]), "callback tensor 'prompt_embeds': expected"),
    (pipeline(latents=torch.zeros(3, 1, 8, 8)), "latents of shape"),
    (pipeline(class_labels=[0, 1]), "knows no classes"),
    (pipeline(class_labels=0, label=0), "label beside class_labels"),
    (pipeline(condition={"gap": 0.3}), "condition 'gap': this network knows none"),
    (pipeline(guidance_scale=2.0), r"guidance_scale=2\.0"),
    (lambda: BFNPipeline.from_model(model(*NUMBERS)), "network Identity: only a network of"),
    (lambda: BFNTextPipeline(TEXT, DiscreteBFNScheduler(3), "ab"), "alphabet of 2 symbols: expected 3"),
    (lambda: BFNTextPipeline(TEXT, DiscreteBFNScheduler(3))(2, 3, lengths=7), "lengths from 7 to 7: expected 1 to 6"),
    (lambda: BFNScheduler().step(torch.zeros(1), 500, torch.zeros(1)), "step before set_timesteps"),
    (scheduler(step=123), "timestep=123: expected one of scheduler.timesteps"),
    (scheduler(step=2, seen=True), "expected .*, the next one"),
    (scheduler(step=4, solver="bfn-solver2-singlestep"), "must begin at the first timestep"),
    (lambda: BFNScheduler().set_timesteps(), "exactly one"),
    (scheduler(step=0, num_inference_steps=5, timesteps=[900, 500]), "exactly one"),
    (scheduler(step=0, timesteps=[20.0, 400.0]), "increasing"),
    (scheduler(step=0, solver="bfn-solver3"), "solver='bfn-solver3'"),
    (lambda: drawing("bfn"), "a list of generators"),
    (lambda: BFNScheduler(prediction_type="logits"), "it is for discrete data, the flow is continuous"),
    (lambda: BFNScheduler.from_model(model(*CLASSES)), "BFNScheduler is for continuous flows"),
    (lambda: DiscreteBFNScheduler.from_model(model(*NUMBERS)), "DiscreteBFNScheduler is for discrete flows"),
    (lambda: VPSolverScheduler.from_model(bfn.load("digits")), "from_config"),
    *((lambda v=v: VariancePreservingSchedule(v), "alphas_cumprod") for v in ((0.5,), (0.4, 0.5), (1.0, 0.5))),
    *((lambda v=v: VariancePreservingSchedule(v), "alphas_cumprod") for v in ((0.5, 0.5), (0.5, float("nan")))),
    (lambda: VariancePreservingHead("score"), "predicts='score': expected 'epsilon'"),
    (lambda: hub.from_pretrained(DATA), "expected a directory with model.safetensors"),
    (lambda: hub.from_pretrained(DATA, colour=1), "'colour': only network= can be given"),
    (lambda: load_official("absent.pt", "text8_discrete"), "absent.pt: no such file"),
    (lambda: convert(DATA / "text8_ema.pt", "text8_discrete", "out"), "does not fit"),
    (lambda: configuration("text9"), "settings='text9': expected one of text8_discrete, .*mnist_discrete"),
    (official("text8", "net", "class_name", value="LSTM"), "^settings: net is 'LSTM'"),
    (official("text8", "net", value=None), "^settings: 'net' is missing"),
    (official("text8", "net", "parameters", "n_layer", value=None), "^settings: net.n_layer is missing"),
    (official("text8", "net", "parameters", "n_layer", value="two"), "^settings: net.n_layer is 'two'"),
    (official("text8", "net", "parameters", "n_layer", value=True), "^settings: net.n_layer is True"),
    (official("text8", "net", "parameters", "skip", value=False), "^settings: net.skip=False; only True is supported"),
    (official("text8", "net", "parameters", "colour", value=3), "^settings: net has unknown parameters colour"),
    (official("text8", "output_adapter", value={}), "^settings: output_adapter"),
    (official("text8", "distribution_factory", "class_name", value="BernoulliFactory"), "expected CategoricalFactory"),
    (official("mnist", "net", "parameters", "channel_mult", value=[1, 0.5]), r"channel_mult is \[1, 0.5\]"),
    (official("mnist", "bayesian_flow", "parameters", "n_classes", value=3), "^settings: .*n_classes=3"),
    (official("mnist", "output_adapter", "parameters", "output_height", value=2), "^settings: .*output_height=2"),
    (official("cifar10_discretized", "output_adapter", "parameters", "output_height", value=1), "output_height=1"),
    (official("cifar10_discretized", "distribution_factory", "parameters", "clip", value=False), "clip=False"),
    (official("cifar10_continuous", "input_adapter", "parameters", "add_pos_feats", value=True), "add_pos_feats=True"),
]


@pytest.mark.parametrize(("act", "message"), MESSAGES)
def test_messages(act, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((bfn.UserError, StorageError), match=message) as error:
        act()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
