"""Published checkpoints: their configurations, the messages for damaged files, and the memory of loading."""

import copy
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bfn import networks
from bfn.core.errors import UserError
from bfn.interop.official import PUBLISHED, CheckpointMismatchError, configuration, convert, load_official
from bfn.storage.models import load

DATA = Path(__file__).parents[2] / "data" / "official-checkpoints"
SETTINGS = json.loads((DATA / "small-cases.json").read_text())
SHAPES = json.loads((DATA / "state-dict-shapes.json").read_text())
TEXT8 = DATA / "text8_ema.pt"


def weights() -> dict[str, Tensor]:
    return dict(torch.load(TEXT8, weights_only=True))


def refused(path: Path, settings: Any = SETTINGS["text8"]) -> str:
    """Return the message of the error that a file causes, one line that starts with the path."""
    with pytest.raises(UserError) as caught:
        load_official(path, settings)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "saved.pt")
    return tmp_path / "saved.pt"


def rewritten(tmp_path: Path, record: str, change: Any) -> Path:
    """Return a copy of text8_ema.pt with one record of its archive changed, or dropped if the change returns None."""
    path = tmp_path / "rewritten.pt"
    with zipfile.ZipFile(TEXT8) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = change(old.read(name)) if name.endswith(record) else old.read(name)
            if content is not None:
                new.writestr(name, content)
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_network_has_the_published_number_of_weights(name: str) -> None:
    with torch.device("meta"):
        network = networks.build(PUBLISHED[name].network)
    assert sum(parameter.numel() for parameter in network.parameters()) == SHAPES[name]["parameters"]


@pytest.mark.parametrize("case", SETTINGS)
def test_a_published_model_keeps_its_facts_however_often_it_is_stored(case: str, tmp_path: Path) -> None:
    model = convert(DATA / f"{case}_ema.pt", SETTINGS[case], tmp_path / "once")
    once = load(tmp_path / "once")
    once.save(tmp_path / "twice")
    twice = load(tmp_path / "twice")
    for stored in (once, twice):
        assert stored.info == model.info
        assert (stored.flow, stored.head, stored.data_shape) == (model.flow, model.head, model.data_shape)
        assert stored.network.config == model.network.config
        for key, value in model.state_dict().items():
            assert torch.equal(stored.state_dict()[key], value), key
    images = case.startswith("cifar10")
    assert model.info.value_range == ((-1, 1) if images else None)
    assert model.info.classes is None
    assert model.info.card["source"] == f"the original BFN paper's weights, from {case}_ema.pt"
    assert model.info.trained_on == configuration(SETTINGS[case]).data


def test_every_key_that_does_not_fit_is_named(tmp_path: Path) -> None:
    changed = weights()
    del changed["net.lm_head.bias"]
    changed["net.extra"] = torch.zeros(1)
    changed["net.transformer.h.1.attn.c_attn.weight"] = torch.zeros(3, 4)
    changed["net.transformer.ln_f.weight"] = torch.zeros(16, dtype=torch.int64)
    with pytest.raises(CheckpointMismatchError) as caught:
        load_official(saved(tmp_path, changed), SETTINGS["text8"])
    assert caught.value.missing == ("net.lm_head.bias",)
    assert caught.value.unexpected == ("net.extra",)
    assert caught.value.misshapen == (
        "net.transformer.h.1.attn.c_attn.weight (3, 4) instead of (48, 16)",
        "net.transformer.ln_f.weight of torch.int64 instead of torch.float32",
    )
    for key in ("net.lm_head.bias", "net.extra", *caught.value.misshapen):
        assert key in str(caught.value)


def test_a_long_list_of_keys_is_cut_in_the_message_alone() -> None:
    with pytest.raises(CheckpointMismatchError) as caught:
        load_official(TEXT8, "mnist_discrete")
    assert len(caught.value.missing) == 218
    assert "218 missing" in str(caught.value)
    assert "and 210 more" in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_mixture_of_prefixed_and_bare_keys_is_no_published_file(tmp_path: Path) -> None:
    mixed = weights()
    mixed["lm_head.bias"] = mixed.pop("net.lm_head.bias")
    assert "32 unexpected" in refused(saved(tmp_path, mixed))


def test_the_wrong_name_for_a_file_is_told_the_right_one(tmp_path: Path) -> None:
    shapes = SHAPES["mnist_discrete"]["state_dict"]
    path = saved(tmp_path, {key: torch.zeros(1).expand(shape) for key, shape in shapes.items()})
    assert refused(path, "text8_discrete").endswith("its keys are those of mnist_discrete")


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_code_in_a_file_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "posix.mkdir" in refused(saved(tmp_path, {"net.a": Harmful()}))
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"net.a": Harmful()}, protocol=2))
    refused(tmp_path / "plain.pkl")
    assert not (tmp_path / "harm").exists()
    assert "torch.nn.modules.linear.Linear" in refused(saved(tmp_path, torch.nn.Linear(1, 1)))


def test_a_file_that_is_cut_off_says_where(tmp_path: Path) -> None:
    whole = TEXT8.read_bytes()
    path = tmp_path / "cut.pt"
    for length in (20_000, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert f"at byte {length}" in refused(path)
    legacy = io.BytesIO()
    torch.save(weights(), legacy, _use_new_zipfile_serialization=False)
    path.write_bytes(legacy.getvalue()[:25_000])
    assert "25000 bytes" in refused(path)


def test_truncated_tensors_are_named(tmp_path: Path) -> None:
    key = list(weights())[5]
    assert key in refused(rewritten(tmp_path, "/data/5", lambda content: content[: len(content) // 2]))
    assert key in refused(rewritten(tmp_path, "/data/5", lambda content: None))
    refused(rewritten(tmp_path, "/data.pkl", lambda content: content[:100]))
    refused(rewritten(tmp_path, "/data.pkl", lambda content: None))


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    for content in (b"", b"hello world\n" * 9, bytes(range(256)) * 9, b"PK\x03\x04"):
        (tmp_path / "file.pt").write_bytes(content)
        refused(tmp_path / "file.pt")
    assert "holds a list" in refused(saved(tmp_path, [1, 2]))
    assert "'step' holds a int" in refused(saved(tmp_path, {"step": 3}))


def test_a_mixture_head_is_read(tmp_path: Path) -> None:
    settings = copy.deepcopy(SETTINGS["cifar10_discretized"])
    settings["distribution_factory"]["class_name"] = "DiscretizedGMMFactory"
    settings["output_adapter"]["parameters"]["output_height"] = 6
    chosen = configuration(settings)
    assert chosen.head.raw_shape((3, 6, 6)) == (3, 6, 6, 6)
    assert torch.isfinite(chosen.build().sample(1, "bfn", nfe=2).x).all()


MEASURE = """
import json, re, sys
import torch
from bfn.interop import load_official
torch.set_num_threads(1)
def kilobytes(name):  # not getrusage, whose peak is inherited from the parent process
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
load_official(sys.argv[1], json.load(open(sys.argv[2]))["text8"])  # whatever is made only once
before = kilobytes("VmRSS")
model = load_official(sys.argv[3], sys.argv[4])
print(1024 * (kilobytes("VmHWM") - before) / sum(4 * p.numel() for p in model.parameters()))
shape = (1, *model.flow.state_shape(model.data_shape))
u = torch.randn(shape, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    mean = model.output(u, model.flow.noise_level(0.5, 1, len(shape) - 1, u)).mean
print(bool(torch.isfinite(mean).all()), tuple(mean.shape) == shape)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_of_full_size_loads_in_three_times_its_memory(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        key: torch.empty(shape).normal_(std=0.02, generator=generator)
        for key, shape in SHAPES[name]["state_dict"].items()
    }
    torch.save(state, tmp_path / "full.pt")
    del state
    arguments = [sys.executable, "-c", MEASURE, str(TEXT8), str(DATA / "small-cases.json"), tmp_path / "full.pt", name]
    output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    assert float(output[0]) <= 3.0
    assert output[1:] == ["True", "True"]
