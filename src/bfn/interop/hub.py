"""Models on the Hugging Face Hub, or in directories of its layout (extra ``hub``).

    model = hub.from_pretrained("user/name")        # or a directory
    hub.push_to_hub("runs/mine", "user/name")       # a run's directory, a bundled model's name, or a model

A model there is what :func:`bfn.storage.save` writes, ``config.json`` and ``model.safetensors``, with a ``README.md``:
the model card, written from the record that training and measuring left in the config.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
from torch import nn

from bfn import storage
from bfn.model import BFN, load

LIBRARY = "bayesian-flow"
RECORD = ("n_labels", "alphabet", "card")
"""What a stored model says of itself besides its parts."""


class HubBFN(BFN, ModelHubMixin, library_name=LIBRARY, tags=["bayesian-flow-network"]):
    """A model with ``from_pretrained``, ``save_pretrained`` and ``push_to_hub``.

    record: ``n_labels``, ``alphabet`` and ``card`` of the stored model, all optional.
    """

    def __init__(self, model: BFN, record: Mapping[str, Any] | None = None) -> None:
        super().__init__(model.network, model.flow, model.head, model.data_shape)
        self.tables, self.error_curve = model.tables, model.error_curve
        self.record = {key: (record or {})[key] for key in RECORD if (record or {}).get(key)}
        self.train(model.training)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory, self.record)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        network: nn.Module | None = None,
        **model_kwargs: Any,
    ) -> Self:
        if model_kwargs:
            raise TypeError(f"{next(iter(model_kwargs))!r}: only network= can be given besides where to find the model")
        directory = Path(model_id)
        if not directory.is_dir():
            for name in (storage.CONFIG, storage.WEIGHTS):
                path = hf_hub_download(
                    model_id,
                    name,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
                directory = Path(path).parent
        return cls(load(directory, network), storage.read_config(directory))

    def generate_model_card(self, *args: Any, **data: Any) -> ModelCard:
        """The card of this model; data: its metadata, such as license="mit"."""
        return model_card(storage.describe(self, self.record), **data)


def from_pretrained(name: str | Path, *, network: nn.Module | None = None, **where: Any) -> HubBFN:
    """A model from the Hub by its "user/name", or from a directory; float32, in evaluation mode.

    network: needed where the model was stored with a network that is not one of ``bfn.networks``.
    where: revision, token, cache_dir, force_download, local_files_only.
    """
    if network is not None:
        where["network"] = network
    return HubBFN.from_pretrained(name, **where)


def save_pretrained(
    model: BFN | str | Path, directory: str | Path, record: Mapping[str, Any] | None = None, **data: Any
) -> None:
    """Write the Hub's layout into a directory. model: one, or a stored one by directory or name, record and all.

    data: metadata of the card, such as license="mit". A README.md that is there already is kept.
    """
    _with_record(model, record).save_pretrained(directory, model_card_kwargs=data)


def push_to_hub(
    model: BFN | str | Path,
    repo_id: str,
    record: Mapping[str, Any] | None = None,
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Model and card",
    **data: Any,
) -> str:
    """Upload a model with its card; returns the commit's address. Arguments as in :func:`save_pretrained`."""
    return _with_record(model, record).push_to_hub(
        repo_id,
        private=private,
        token=token,
        commit_message=commit_message,
        model_card_kwargs={"name": repo_id, **data},
    )


def _with_record(model: BFN | str | Path, record: Mapping[str, Any] | None) -> HubBFN:
    if isinstance(model, HubBFN):
        return model if record is None else HubBFN(model, record)
    if isinstance(model, BFN):
        return HubBFN(model, record)
    return HubBFN(load(model), storage.read_config(model) if record is None else record)


def model_card(config: Mapping[str, Any], name: str | None = None, **data: Any) -> ModelCard:
    """The card of a stored model from its config.json. name: its "user/name". data: metadata, such as license="mit"."""
    card = config.get("card") or {}
    metadata = ModelCardData(
        **{
            "library_name": LIBRARY,
            "tags": ["bayesian-flow-network", "model_hub_mixin"],
            "pipeline_tag": _pipeline_tag(config),
            **data,
        }
    )
    parts = [
        f"# {name or 'A Bayesian flow network'}",
        _description(config),
        "```python\n"
        "from bfn.interop import hub\n\n"
        f'model = hub.from_pretrained("{name or "user/name"}")\n'
        "samples = model.sample(16, nfe=10).x\n"
        "```",
        *_section("Measured", _pairs(card.get("quality")), _rows(card.get("measured"))),
        *_section("Held-out bits a dimension", _pairs(card.get("held-out bits a dimension"))),
        *_section("Training", _pairs(_training(card)), _settings(card.get("settings"))),
        *_section("Note", str(card.get("note") or "")),
    ]
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n")


def _pipeline_tag(config: Mapping[str, Any]) -> str | None:
    if config.get("alphabet"):
        return "text-generation"
    return "unconditional-image-generation" if len(config["data_shape"]) == 3 else None


def _description(config: Mapping[str, Any]) -> str:
    flow, shape = config["flow"], " x ".join(map(str, config["data_shape"]))
    classes = f" of {flow['n_classes']} classes" if "n_classes" in flow else ""
    labels = f", conditional on {config['n_labels']} labels" if config.get("n_labels") else ""
    network = (config["network"] or {}).get("name", "a network of its own, to be given on loading")
    tuned = ", ".join(config.get("tables") or {})
    words = [
        f"A Bayesian flow network on {flow['name']} data, {shape}{classes}{labels}.",
        f"Network: {network}. Head: {config['head']['name']}.",
        f"It carries solvers tuned to it at {tuned} calls, which the default solver takes." if tuned else "",
    ]
    return " ".join(filter(None, words))


def _training(card: Mapping[str, Any]) -> dict[str, Any]:
    data = ((card.get("settings") or {}).get("data") or {}).get("name")
    facts = {"data": data, **{key: card.get(key) for key in ("step", "minutes", "parameters", "seed of the samples")}}
    return {key: value for key, value in facts.items() if value is not None}


def _settings(settings: Mapping[str, Any] | None) -> str:
    return f"All settings:\n\n```json\n{json.dumps(settings, indent=2)}\n```" if settings else ""


def _section(title: str, *bodies: str) -> list[str]:
    told = [body for body in bodies if body]
    return [f"## {title}", *told] if told else []


def _pairs(values: Mapping[str, Any] | None) -> str:
    return _table(("", ""), [(key, value) for key, value in values.items()]) if values else ""


def _rows(rows: Sequence[Mapping[str, Any]] | None) -> str:
    """Rows with the same or different keys as one table."""
    columns = list(dict.fromkeys(key for row in rows or () for key in row))
    return _table(columns, [[row.get(column, "") for column in columns] for row in rows]) if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [list(map(_cell, row)) for row in rows]
    lines = [list(head), ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
