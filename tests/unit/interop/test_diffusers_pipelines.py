"""Pipelines of diffusers draw the samples of the library, and are saved and loaded."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
import tiny
from bfn import solvers
from bfn.core.info import ErrorCurve

pytest.importorskip("diffusers")
from diffusers import DiffusionPipeline, UNet2DModel

from bfn.interop.diffusers import BFNNetwork, BFNPipeline, BFNTextPipeline, UNetNetwork
from bfn.interop.diffusers.schedulers import BFNScheduler


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress bars."""
    monkeypatch.setattr(BFNPipeline, "_progress_bar_config", {"disable": True}, raising=False)
    monkeypatch.setattr(BFNTextPipeline, "_progress_bar_config", {"disable": True}, raising=False)


def shaken(network: torch.nn.Module) -> torch.nn.Module:
    """Weights that make every output count: fresh ones start as nothing."""
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.15, generator=generator)
    return network.eval()


def build(kind: str) -> bfn.BFN:
    model = tiny.build(kind).eval()
    model.info.error_curve = ErrorCurve((0.0, 0.5, 1.0), (1.0, 0.3, 0.1))
    return model


def unet(classes: int | None = None) -> UNet2DModel:
    settings = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "norm_num_groups": 4, "add_attention": False}
    settings |= {"block_out_channels": (8, 16), "num_class_embeds": classes}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2, "layers_per_block": 1}
    return UNet2DModel(**settings, **blocks)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("solver", solvers.names("continuous"))
def test_images_are_those_of_sample(solver: str) -> None:
    model, label = build("images"), torch.tensor([0, 1, 2, 0])
    ours = model.sample(4, solver, 10, label=label, generator=seeded()).x
    pipeline = BFNPipeline.from_model(model, solver=solver)
    theirs = pipeline(4, 10, class_labels=[0, 1, 2, 0], generator=seeded(), output_type="latent").images
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", solvers.names("discrete"))
def test_texts_are_those_of_sample(solver: str) -> None:
    model, seen = build("text"), {}

    def keep(pipeline: Any, index: int, timestep: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update(tensors)
        return {}

    ours = model.sample(4, solver, 10, generator=seeded())
    callback = {"callback_on_step_end": keep, "callback_on_step_end_tensor_inputs": ["pred_original_sample"]}
    theirs = BFNTextPipeline.from_model(model, solver=solver)(4, 10, generator=seeded(), **callback).texts
    assert theirs == ours.decoded
    torch.testing.assert_close(seen["pred_original_sample"], ours.prediction, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [0.0, 2.5])
def test_guidance_is_the_librarys_without_rescaling(scale: float) -> None:
    model, label = build("images"), torch.tensor([2, 1])
    ours = model.sample(2, "fast-ode", 8, label=label, guidance=bfn.Guidance(scale, rescale=0.0), generator=seeded()).x
    pipeline = BFNPipeline.from_model(model, solver="fast-ode")
    theirs = pipeline(2, 8, class_labels=label, guidance_scale=scale, generator=seeded(), output_type="latent").images
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_forms_of_output() -> None:
    pipeline = BFNPipeline.from_model(build("images"), clip_sample=True)
    forms: dict[str, Any] = {
        form: pipeline(2, 5, generator=seeded(), output_type=form).images for form in ("pil", "np", "pt", "latent")
    }
    share = (forms["latent"].clamp(-1, 1) + 1) / 2
    torch.testing.assert_close(forms["pt"], share)
    np.testing.assert_allclose(forms["np"], share.permute(0, 2, 3, 1).numpy())
    np.testing.assert_array_equal(np.asarray(forms["pil"][0]), (share[0, 0] * 255).round().numpy().astype("uint8"))
    assert torch.equal(pipeline(2, 5, generator=seeded(), output_type="pt", return_dict=False)[0], forms["pt"])


def test_images_of_classes() -> None:
    model = build("binary")
    pipeline = BFNPipeline.from_model(model)
    ours = model.sample(2, "auto", 6, generator=seeded()).x
    assert torch.equal(pipeline(2, 6, generator=seeded(), output_type="latent").images, ours)
    assert torch.equal(pipeline(2, 6, generator=seeded(), output_type="pt").images, ours.float())


@pytest.mark.parametrize("kind", ["images", "binary", "unet"])
def test_a_loaded_pipeline_draws_the_same(kind: str, tmp_path: Path) -> None:
    if kind == "unet":
        pipeline = BFNPipeline(shaken(unet(4)), BFNScheduler(solver="bfn-solver++2"))
    else:
        pipeline = BFNPipeline.from_model(build(kind), solver="fast-ode")
    pipeline.save_pretrained(tmp_path)
    loaded = (BFNPipeline if kind == "binary" else DiffusionPipeline).from_pretrained(tmp_path)
    assert type(loaded) is BFNPipeline
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded.unet) is type(pipeline.unet)
    assert loaded.scheduler.config.solver == pipeline.scheduler.config.solver
    first, second = (one(2, 6, generator=seeded(), output_type="latent").images for one in (pipeline, loaded))
    assert torch.equal(first, second)


def test_a_loaded_pipeline_keeps_its_alphabet(tmp_path: Path) -> None:
    pipeline = BFNTextPipeline.from_model(build("text"), solver="fast-sde")
    pipeline.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["alphabet"] == tiny.ALPHABET
    loaded = DiffusionPipeline.from_pretrained(tmp_path)
    assert type(loaded) is BFNTextPipeline
    assert loaded(3, 6, generator=seeded()).texts == pipeline(3, 6, generator=seeded()).texts


@pytest.mark.parametrize(
    "given", [{}, {"lengths": [2, 3, 4, 6]}, {"condition": {"gap": [0.1, 0.2, 0.3, 0.4]}}, {"condition": {"gap": 0.3}}]
)
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_lengths_and_conditions_are_those_of_sample(given: dict[str, Any], scale: float, tmp_path: Path) -> None:
    """Drawn from the data of the model, which the pipeline stores, or given."""
    model = tiny.build("molecules")
    guidance = None if scale == 1 else bfn.Guidance(scale, rescale=0.0)
    ours = model.sample(4, "fast-ode", 6, generator=seeded(), guidance=guidance, **given)
    BFNTextPipeline.from_model(model, solver="fast-ode").save_pretrained(tmp_path)
    for pipeline in (BFNTextPipeline.from_model(model, solver="fast-ode"), DiffusionPipeline.from_pretrained(tmp_path)):
        drawn = pipeline(4, 6, generator=seeded(), guidance_scale=scale, output_type="pt", **given).texts
        assert torch.equal(drawn, ours.x)
    assert pipeline(4, 6, generator=seeded(), guidance_scale=scale, **given).texts == ours.decoded


def test_the_bundled_molecules_are_those_of_sample() -> None:
    model = bfn.load("qm9")
    ours = model.sample(12, nfe=4, generator=seeded())
    assert BFNTextPipeline.from_model(model)(12, 4, generator=seeded()).texts == ours.decoded


def test_pipelines_of_earlier_versions_name_modules_that_can_be_imported() -> None:
    for module in ("networks", "pipelines", "schedulers"):
        assert importlib.import_module(f"bfn.interop.diffusers.{module}")
    assert BFNNetwork.__module__ == "bfn.interop.diffusers"


def test_classes_are_drawn_by_their_shares_and_have_names(tmp_path: Path) -> None:
    model = build("images")
    model.info.classes = bfn.Classes(("cat", "dog", "eel"), (0.5, 0.5, 0.0))
    BFNPipeline.from_model(model).save_pretrained(tmp_path)
    pipeline = BFNPipeline.from_pretrained(tmp_path)
    ours = model.sample(3, nfe=4, generator=seeded()).x
    torch.testing.assert_close(pipeline(3, 4, generator=seeded(), output_type="latent").images, ours)
    for name, label in (("class_labels", "dog"), ("label", -1), ("class_labels", ["eel", "cat", "dog"])):
        ours = model.sample(3, nfe=4, label=label, generator=seeded()).x
        drawn = pipeline(3, 4, generator=seeded(), output_type="latent", **{name: label}).images
        torch.testing.assert_close(drawn, ours, rtol=1e-5, atol=1e-5)


def test_a_callback_sees_each_call_and_may_change_the_sample() -> None:
    pipeline, calls = BFNPipeline.from_model(build("images"), solver="bfn-solver++1"), []

    def zero(pipeline: Any, index: int, timestep: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append((index, float(timestep), sorted(tensors)))
        return {"latents": torch.zeros_like(tensors["latents"])} if index == 4 else {}

    drawn = pipeline(2, 5, generator=seeded(), output_type="latent", callback_on_step_end=zero).images
    assert [index for index, *_ in calls] == list(range(5))
    assert [timestep for _, timestep, _ in calls] == pipeline.scheduler.timesteps.tolist()
    assert all(names == ["latents"] for *_, names in calls)
    assert not drawn.any()


def test_it_starts_from_given_noise_at_given_timesteps() -> None:
    model = build("images")
    pipeline = BFNPipeline.from_model(model, solver="bfn-solver++2")
    noise, timesteps = torch.randn(2, 1, 8, 8, generator=seeded()), [950.0, 500.0, 100.0]
    theirs = pipeline(2, latents=noise, timesteps=timesteps, class_labels=-1, output_type="latent").images
    grid = 1 - torch.tensor(timesteps, dtype=torch.float64) / 1000
    ours = model.sample(2, "bfn-solver++2", grid=grid, initial=noise, label=-1).x
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


# diffusers' U-Net as a network of this library.


def test_the_u_net_sees_timesteps_and_no_class_as_the_last_one() -> None:
    network = shaken(unet(4))
    inputs, t = torch.randn(3, 1, 8, 8, generator=seeded()), torch.tensor([0.0, 0.3, 1.0])
    with torch.no_grad():
        ours = UNetNetwork(network)(inputs, t, torch.tensor([0, -1, 2]))
        theirs = network(inputs, (1 - t) * 1000, torch.tensor([0, 3, 2])).sample
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(UNetNetwork(network)(inputs, t)[1], ours[1])


def test_a_pipeline_with_the_u_net_draws_what_the_model_does() -> None:
    model = bfn.BFN(UNetNetwork(shaken(unet(4))), bfn.ContinuousFlow(), "preconditioned", (1, 8, 8)).eval()
    ours = model.sample(2, "fast-sde", 6, label=torch.tensor([1, 0]), generator=seeded()).x
    pipeline = BFNPipeline.from_model(model, solver="fast-sde")
    assert isinstance(pipeline.unet, UNet2DModel)
    theirs = pipeline(2, 6, class_labels=[1, 0], generator=seeded(), output_type="latent").images
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_a_library_network_is_called_as_diffusers_calls_its_own() -> None:
    model = build("images")
    wrapped = BFNNetwork(model.network.config, [1, 8, 8])
    wrapped.network.load_state_dict(model.network.state_dict())
    inputs, label = torch.randn(2, 1, 8, 8, generator=seeded()), torch.tensor([1, -1])
    with torch.no_grad():
        expected = model.network(inputs, torch.tensor([0.4, 0.4]), label=label)
        torch.testing.assert_close(wrapped(inputs, 600, label).sample, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(wrapped(inputs, torch.tensor([600.0, 600.0]), label, return_dict=False)[0], expected)
