"""Models in the layout of the Hub: files, model cards, uploads and downloads, without a connection."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bfn
from bfn.core.plain import StorageError

pytest.importorskip("huggingface_hub")
from huggingface_hub import HfApi, ModelCard

from bfn.interop import hub

CARD = {
    "settings": {"data": {"name": "letters"}, "lr": 0.001},
    "step": 30,
    "minutes": 1.25,
    "quality": {"spelling | at 10 calls": "51.3 %"},
    "measured": [{"solver": "auto", "nfe": 10, "spelling": 0.5125}, {"solver": "bfn", "nfe": 10, "t_start": 0.001}],
    "held-out bits a dimension": {"total_bits": 1.2345678},
    "note": "Made for a test.",
}


def small_model() -> bfn.BFN:
    torch.manual_seed(0)
    network = bfn.networks.MLP(4, n_classes=3, width=8)
    return bfn.BFN(network, bfn.DiscreteFlow(3), "logits", (4,)).eval()


def known_model() -> bfn.BFN:
    model = small_model()
    model.info = bfn.ModelInfo(alphabet="ab|", card=CARD)
    return model


def draw(model: bfn.BFN) -> torch.Tensor:
    return model.sample(5, "bfn-solver2", 6, generator=torch.Generator().manual_seed(1)).prediction


def test_saved_and_loaded_it_is_the_same_model(tmp_path: Path) -> None:
    model = known_model()
    hub.save_pretrained(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = hub.from_pretrained(tmp_path)
    torch.testing.assert_close(draw(loaded), draw(model), rtol=0, atol=0)
    assert loaded.info == model.info
    assert not loaded.training
    torch.testing.assert_close(draw(bfn.load(tmp_path)), draw(model), rtol=0, atol=0)
    loaded.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_card_says_what_the_info_knows(tmp_path: Path) -> None:
    hub.save_pretrained(known_model(), tmp_path, license="mit")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit"
    assert card.data.library_name == "bayesian-flow"
    assert card.data.pipeline_tag == "text-generation"
    for line in (
        "A Bayesian flow network on discrete data, 4 of 3 classes.",
        "| spelling \\| at 10 calls | 51.3 % |",
        "| solver | nfe | spelling | t_start |",
        "| bfn | 10 |  | 0.001 |",
        "| total_bits | 1.235 |",
        "| minutes | 1.25 |",
        '"lr": 0.001',
        "Made for a test.",
    ):
        assert line in card.text


def test_cards_of_other_models() -> None:
    assert "## " not in hub.model_card(small_model()).text
    assert "age: one value of 73 classes" in hub.model_card(bfn.load("adult")).text


def test_a_card_of_the_users_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    hub.save_pretrained(small_model(), tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_tuned_tables_go_along(tmp_path: Path) -> None:
    model = small_model()
    model.info.tables = {6: bfn.solvers.plan(model, "bfn-solver2", 6).table}
    hub.save_pretrained(model, tmp_path)
    assert hub.from_pretrained(tmp_path).info.tables == model.info.tables
    assert "tuned to it at 6 calls" in (tmp_path / "README.md").read_text()


def test_a_network_of_the_users_own_is_given_again(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, theta: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return theta * self.scale

    model = bfn.BFN(Own(), bfn.DiscreteFlow(3), "logits", (4,))
    hub.save_pretrained(model, tmp_path)
    torch.testing.assert_close(draw(hub.from_pretrained(tmp_path, network=Own())), draw(model))
    with pytest.raises(StorageError):
        hub.from_pretrained(tmp_path)


def test_what_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: dict[str, bytes] = {}

    def upload(self: HfApi, *, repo_id: str, folder_path: Path, **settings: object) -> str:
        assert repo_id == "someone/letters"
        uploaded.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        return "the commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **settings: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    model = known_model()
    model.save(tmp_path)
    assert hub.push_to_hub(tmp_path, "someone/letters", license="mit") == "the commit"
    assert sorted(uploaded) == ["README.md", "config.json", "model.safetensors"]
    assert json.loads(uploaded["config.json"])["info"]["card"] == CARD
    assert uploaded["model.safetensors"] == (tmp_path / "model.safetensors").read_bytes()
    assert b'hub.from_pretrained("someone/letters")' in uploaded["README.md"]


def test_from_the_hub_both_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = known_model()
    model.save(tmp_path)
    asked = []

    def download(repo_id: str, filename: str, **settings: object) -> str:
        asked.append((repo_id, filename, settings["revision"]))
        return str(tmp_path / filename)

    monkeypatch.setattr("bfn.interop.hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    torch.testing.assert_close(draw(hub.from_pretrained("someone/letters", revision="v1")), draw(model))
    assert {("someone/letters", "config.json", "v1"), ("someone/letters", "model.safetensors", "v1")} == set(asked)
