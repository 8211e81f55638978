"""Models on the Hugging Face Hub, or in directories of its layout (extra ``hub``).

    model = hub.from_pretrained("user/name")        # or a directory
    hub.push_to_hub("runs/mine", "user/name")       # a run's directory, a bundled model's name, or a model

A model there is what ``model.save`` writes, ``config.json`` and ``model.safetensors``, with a ``README.md``: the model
card, written from what training and measuring left in the model's info.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
from torch import nn

from bfn.core.errors import UserError
from bfn.core.model import BFN, load
from bfn.quality.comparison import markdown_table
from bfn.storage import models as storage

__all__ = ["HubBFN", "from_pretrained", "model_card", "push_to_hub", "save_pretrained"]


LIBRARY = "bayesian-flow"
PIPELINES = {"text": "text-generation", "images": "unconditional-image-generation", "numbers": None}
"""What the Hub calls a model whose samples have this form."""
WHERE = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class HubBFN(BFN, ModelHubMixin, library_name=LIBRARY, tags=["bayesian-flow-network"]):
    """A model with ``from_pretrained``, ``save_pretrained`` and ``push_to_hub``."""

    def __init__(self, model: BFN) -> None:
        super().__init__(model.network, model.flow, model.head, model.data_shape, model.info)
        self.train(model.training)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, network: nn.Module | None = None, **where: Any) -> Self:
        unknown = next((name for name in where if name not in WHERE), None)
        if unknown is not None:
            raise UserError(f"{unknown!r}: only network= can be given besides where to find the model")
        directory = Path(model_id)
        if not directory.is_dir():
            files = [hf_hub_download(model_id, name, **where) for name in (storage.CONFIG, storage.WEIGHTS)]
            directory = Path(files[-1]).parent
        return cls(load(directory, network))

    def generate_model_card(self, *args: Any, **data: Any) -> ModelCard:
        """The card of this model; data: its metadata, such as license="mit"."""
        return model_card(self, **data)


def from_pretrained(name: str | Path, *, network: nn.Module | None = None, **where: Any) -> HubBFN:
    """A model from the Hub by its "user/name", or from a directory; float32, in evaluation mode.

    network: needed where the model was stored with a network that is not one of ``bfn.networks``.
    where: revision, token, cache_dir, force_download, local_files_only.
    """
    return HubBFN.from_pretrained(name, network=network, **where)


def save_pretrained(model: BFN | str | Path, directory: str | Path, **data: Any) -> None:
    """Write the Hub's layout into a directory. model: one, or a stored one by directory or name.

    data: metadata of the card, such as license="mit". A README.md that is there already is kept.
    """
    _hub_model(model).save_pretrained(directory, model_card_kwargs=data)


def push_to_hub(
    model: BFN | str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Model and card",
    **data: Any,
) -> str:
    """Upload a model with its card; returns the commit's address. Arguments as in :func:`save_pretrained`."""
    told = {"name": repo_id, **data}
    return _hub_model(model).push_to_hub(
        repo_id, commit_message=commit_message, private=private, token=token, model_card_kwargs=told
    )


def _hub_model(model: BFN | str | Path) -> HubBFN:
    if isinstance(model, HubBFN):
        return model
    return HubBFN(model if isinstance(model, BFN) else load(model))


def model_card(model: BFN, name: str | None = None, **data: Any) -> ModelCard:
    """The card of a model. name: its "user/name". data: metadata, such as license="mit"."""
    card = model.info.card
    tags = ["bayesian-flow-network", "model_hub_mixin"]
    known = {"library_name": LIBRARY, "tags": tags, "pipeline_tag": PIPELINES[model.form]}
    metadata = ModelCardData(**{**known, **data})
    told = ("source", "step", "minutes", "parameters", "seed of the samples")
    facts = {"data": model.info.trained_on.get("name"), **{key: card.get(key) for key in told}}
    settings = f"All settings:\n\n```json\n{json.dumps(card.get('settings'), indent=2)}\n```"
    parts = [
        f"# {name or 'A Bayesian flow network'}",
        _description(model),
        "```python\n"
        "from bfn.interop import hub\n\n"
        f'model = hub.from_pretrained("{name or "user/name"}")\n'
        "samples = model.decode(model.sample(16, nfe=10).x)\n"
        "```",
        *_section("Measured", _pairs(card.get("quality")), _rows(card.get("measured"))),
        *_section("Held-out bits a dimension", _pairs(card.get("held-out bits a dimension"))),
        *_section("Training", _pairs(facts), settings if card.get("settings") else ""),
        *_section("Note", str(card.get("note") or "")),
    ]
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n")


def _description(model: BFN) -> str:
    config, info, shape = storage.describe(model), model.info, " x ".join(map(str, model.data_shape))
    values = f" of {model.flow.n_values} classes" if model.flow.n_values else ""
    classes = f", conditional on {len(info.classes)} classes" if info.classes else ""
    network = (config["network"] or {}).get("name", "a network of its own, to be given on loading")
    tuned = ", ".join(map(str, info.tables))
    words = [
        f"A Bayesian flow network on {config['flow']['name']} data, {shape}{values}{classes}.",
        f"Network: {network}. Head: {config['head']['name']}.",
        f"It carries solvers tuned to it at {tuned} calls, which the default solver takes." if tuned else "",
    ]
    return " ".join(filter(None, words))


def _section(title: str, *bodies: str) -> list[str]:
    told = [body for body in bodies if body]
    return [f"## {title}", *told] if told else []


def _pairs(values: Mapping[str, Any] | None) -> str:
    known = [(key, value) for key, value in (values or {}).items() if value is not None]
    return _table(("", ""), known) if known else ""


def _rows(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """Rows with the same or different keys as one table."""
    columns = list(dict.fromkeys(key for row in rows or () for key in row))
    return _table(columns, [[row.get(column, "") for column in columns] for row in rows]) if rows else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(markdown_table(header, [list(map(_cell, row)) for row in rows]))


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
