"""Models on the Hugging Face Hub, or in directories with its layout (extra ``hub``).

    model = hub.from_pretrained("user/name")        # or a directory
    hub.push_to_hub("runs/mine", "user/name")       # the directory of a run, the name of a bundled model, or a model

Such a model consists of the files that ``model.save`` writes, ``config.json`` and ``model.safetensors``, and of
``README.md``, the model card, which is made from the training settings and the measured quality in the model's info.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
from torch import nn

from bfn.core.conditions import CLASSES
from bfn.core.errors import UserError
from bfn.core.info import CARD
from bfn.core.model import BFN
from bfn.core.table import TABLES
from bfn.quality.comparison import markdown_table
from bfn.storage import models as storage
from bfn.storage.models import load

__all__ = ["HubBFN", "from_pretrained", "model_card", "push_to_hub", "save_pretrained"]


LIBRARY = "bayesian-flow"
TAGS = ["bayesian-flow-network", "model_hub_mixin"]
PIPELINES = {"text": "text-generation", "images": "unconditional-image-generation"}
"""Task names of the Hub for models whose samples have this form; other forms have none."""
DOWNLOAD_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class HubBFN(BFN, ModelHubMixin, library_name=LIBRARY, tags=TAGS[:1]):
    """A model with the methods ``from_pretrained``, ``save_pretrained`` and ``push_to_hub`` of the Hub."""

    def __init__(self, model: BFN) -> None:
        super().__init__(model.network, model.flow, model.head, model.data_shape, model.info)
        self.train(model.training)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, network: nn.Module | None = None, **options: Any) -> Self:
        unknown = next((name for name in options if name not in DOWNLOAD_OPTIONS), None)
        if unknown is not None:
            raise UserError(f"{unknown!r}: only network= can be given besides where to find the model")
        directory = Path(model_id)
        if not directory.is_dir():
            files = [hf_hub_download(model_id, name, **options) for name in (storage.CONFIG, storage.WEIGHTS)]
            directory = Path(files[-1]).parent
        return cls(load(directory, network))

    def generate_model_card(self, *args: Any, **data: Any) -> ModelCard:
        """Return the card of this model. ``data``: metadata of the card, such as license="mit"."""
        return model_card(self, **data)


def from_pretrained(name: str | Path, *, network: nn.Module | None = None, **options: Any) -> HubBFN:
    """Load a model from the Hub or from a directory, as float32 and in evaluation mode.

    Args:
        name: "user/name" of the model, or a directory.
        network: the network, if the model was stored with one that is not in ``bfn.networks``.
        options: revision, token, cache_dir, force_download, local_files_only.
    """
    return HubBFN.from_pretrained(name, network=network, **options)


def save_pretrained(model: BFN | str | Path, directory: str | Path, **data: Any) -> None:
    """Write a model and its card into a directory, as they are on the Hub.

    Args:
        model: a model, or the directory or name of a stored one.
        directory: where to write. A README.md that exists is kept.
        data: metadata of the card, such as license="mit".
    """
    _hub_model(model).save_pretrained(directory, model_card_kwargs=data)


def push_to_hub(
    model: BFN | str | Path, repo_id: str, *, private: bool | None = None, token: str | None = None,
    commit_message: str = "Model and card", **data: Any,
) -> str:  # fmt: skip
    """Upload a model with its card, and return the address of the commit.

    Args:
        model: a model, or the directory or name of a stored one.
        repo_id: "user/name".
        private: whether only the owner can see a new model; the owner's default if None.
        token: access token, instead of the one of ``hf auth login``.
        commit_message: message of the commit.
        data: metadata of the card, such as license="mit".
    """
    return _hub_model(model).push_to_hub(
        repo_id, commit_message=commit_message, private=private, token=token,
        model_card_kwargs={"name": repo_id, **data},
    )  # fmt: skip


def _hub_model(model: BFN | str | Path) -> HubBFN:
    if isinstance(model, HubBFN):
        return model
    return HubBFN(model if isinstance(model, BFN) else load(model))


def model_card(model: BFN, name: str | None = None, **data: Any) -> ModelCard:
    """Return the card of a model.

    Args:
        model: the model.
        name: its "user/name".
        data: metadata of the card, such as license="mit".
    """
    card = model.info[CARD]
    task = PIPELINES.get(model.codec.form)
    metadata = ModelCardData(**{"library_name": LIBRARY, "tags": TAGS, "pipeline_tag": task, **data})
    names = ("source", "step", "minutes", "parameters", "seed of the samples")
    training = {"data": model.info.trained_on.get("name"), **{key: card.get(key) for key in names}}
    settings = f"All settings:\n\n```json\n{json.dumps(card.get('settings'), indent=2)}\n```"
    sections = [
        f"# {name or 'A Bayesian flow network'}",
        _description(model),
        "```python\n"
        "from bfn.interop import hub\n\n"
        f'model = hub.from_pretrained("{name or "user/name"}")\n'
        "samples = model.decode(model.sample(16, nfe=10).x)\n"
        "```",
        *_section("Measured", _pairs(card.get("quality")), _rows(card.get("measured"))),
        *_section("Held-out bits a dimension", _pairs(card.get("held-out bits a dimension"))),
        *_section("Training", _pairs(training), settings if card.get("settings") else ""),
        *_section("Note", str(card.get("note") or "")),
    ]
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _description(model: BFN) -> str:
    """Return one paragraph on the data, the network and the head of a model."""
    config, shapes = storage.describe(model), model.flow.by_part("data_shape", model.data_shape)
    classes, tables = model.info[CLASSES], model.info[TABLES]
    parts = []
    for name, part in model.flow.parts.items():
        values = f" of {part.n_values} classes" if part.n_values else ""
        parts.append(f"{name}{': ' if name else ''}{' x '.join(map(str, shapes[name])) or 'one value'}{values}")
    condition = "" if classes is None else f", conditional on {len(classes)} classes"
    network = (config["network"] or {}).get("name", "a network of its own, to be given on loading")
    words = [
        f"A Bayesian flow network on {config['flow']['name']} data, {'; '.join(parts)}{condition}.",
        f"Network: {network}. Head: {config['head']['name']}.",
    ]
    if tables:
        calls = ", ".join(map(str, tables))
        words.append(f"It carries solvers tuned to it at {calls} calls, which the default solver takes.")
    return " ".join(words)


def _section(title: str, *bodies: str) -> list[str]:
    """Return the heading and the texts of a section; nothing if all texts are empty."""
    texts = [body for body in bodies if body]
    return [f"## {title}", *texts] if texts else []


def _pairs(values: Mapping[str, Any] | None) -> str:
    """Return a table of the values that are not None, with their names."""
    known = [(key, value) for key, value in (values or {}).items() if value is not None]
    return _table(("", ""), known) if known else ""


def _rows(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """Return rows, which may have different keys, as one table."""
    columns = list(dict.fromkeys(key for row in rows or () for key in row))
    return _table(columns, [[row.get(column, "") for column in columns] for row in rows]) if rows else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(markdown_table(header, [list(map(_cell, row)) for row in rows]))


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
