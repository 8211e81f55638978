"""Models: a network with a flow, a head and its facts, and what any model can do."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bfn import likelihood
from bfn._utils.arguments import as_tensor
from bfn.core import losses
from bfn.core.codec import Codec, codec_for
from bfn.core.conditions import LENGTHS, Classes, as_values, n_present, pack_present
from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import Flow, NoiseLevel, Shape
from bfn.core.heads import Categorical, Head, Output, PreconditionedHead, make_head
from bfn.core.info import VALUE_RANGE, ModelInfo
from bfn.core.losses import Weighting, weighted_loss, weighting_of
from bfn.core.plain import StorageError
from bfn.core.sampling import Samples, sample
from bfn.likelihood.bits import Likelihood
from bfn.storage import models as storage

Data = Tensor | np.ndarray[Any, Any] | Mapping[str, Any]
"""A batch of data as users give it: a tensor, an array, or a mapping of parts."""


class Model(ABC):
    """Anything that predicts data from a state: :class:`BFN`, and the exact models of ``bfn.exact``."""

    flow: Flow
    data_shape: Any
    """Shape of one sample: a tuple, or a mapping with the shape of each part."""

    @cached_property
    def info(self) -> ModelInfo:
        """What is known of the model beside its weights."""
        return ModelInfo()

    @property
    def dtype(self) -> torch.dtype:
        """Type that states are kept in."""
        return torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """Where states are kept."""
        return torch.device("cpu")

    @property
    def starts_at_zero(self) -> bool:
        """Whether the prediction is defined at t = 0."""
        return True

    @property
    def draws_whole(self) -> bool:
        """Whether it can draw all variables of a sample together, as a network with a chain of symbols can."""
        return False

    @property
    def form(self) -> str:
        """What decoded samples are: "text", "images", "numbers" or "parts"."""
        return self.codec.form

    @abstractmethod
    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """Distribution over the data given the state u, (batch, *state_shape), at that noise level.

        conditions: by name, each (batch, ...); ``present``, like packed data, is one of them.
        """

    def loss(
        self,
        x: Data,
        t: Tensor | None = None,
        n_steps: int | None = None,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
        weighting: str | Weighting | Mapping[str, str | Weighting] | None = None,
        condition: Mapping[str, Tensor] | None = None,
        present: Any = None,
    ) -> Tensor:
        """The continuous-time loss, or the n-step loss if ``n_steps`` is given: (batch,), nats a dimension.

        t: (batch,), drawn stratified if None. Draws: the times, then the noise (then the message, for n steps).
        weighting: what to train instead of the bound, for better samples: a name of ``bfn.losses.WEIGHTINGS``, such
            as "edm" for numbers and "cross-entropy" for classes, or a weighting; it draws the times itself. Of joint
            data it holds for each part ("edm" and "cross-entropy" each for the parts that it fits), or one by name.
        label, condition: what the network is to be told of each sample; -1 and NaN tell it nothing.
        present: bool, like the data, True where there is data: the rest is padding and counts nowhere.
        """
        x, given = self.as_batch(x, label, condition, present)
        if weighting is not None:
            if t is not None or n_steps is not None:
                raise UserError("weighting beside t or n_steps: a weighting draws its own times; leave them out")
            return weighted_loss(self, x, weighting_of(self, weighting), generator, given)
        if n_steps is not None:
            return losses.n_step_loss(self, x, n_steps, t, generator, given)
        return losses.continuous_time_loss(self, x, t, generator, given)

    def as_batch(
        self, x: Data, label: Tensor | None, condition: Mapping[str, Tensor] | None, present: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A batch of data, packed, and all that is given beside it."""
        x = self.as_data(x)
        n, device = len(x), x.device
        if condition is not None and not isinstance(condition, Mapping):
            raise UserError(f"condition of type {type(condition).__name__}: expected {{name: values}}")
        given = {name: as_values(name, value, n).to(device) for name, value in (condition or {}).items()}
        if label is not None:
            given["label"] = as_tensor("label", label, device=device)
        if present is not None:
            shape = self.flow.shape_of(x, self.data_shape)
            given["present"] = pack_present(self.flow, present, shape, n, device)
        return x, given

    def data_std(self, part: str = "") -> float | None:
        """The standard deviation of a part of the data, where the model was made for one."""
        return None

    def loss_of_parts(
        self,
        x: Data,
        t: Tensor | None = None,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
        condition: Mapping[str, Tensor] | None = None,
        present: Any = None,
    ) -> dict[str, Tensor]:
        """Each part's share of the continuous-time loss, (batch,), nats: together they are :meth:`loss`."""
        x, given = self.as_batch(x, label, condition, present)
        there = given.get("present")
        values = losses.continuous_time_loss_values(self, x, t, generator, given)
        values = values if there is None else torch.where(there, values, 0.0)
        n = n_present(x, there)
        return {name: own.reshape(len(x), -1).sum(1) / n for name, own in self.flow.split(values).items()}

    def reconstruction_loss(
        self,
        x: Data,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
        condition: Mapping[str, Tensor] | None = None,
        present: Any = None,
    ) -> Tensor:
        """-log p_O(x) at t = 1: (batch,), nats a dimension."""
        x, given = self.as_batch(x, label, condition, present)
        return losses.reconstruction_loss(self, x, generator, given)

    def even_flow(self, x: Data, n_times: int = 64, generator: torch.Generator | None = None) -> Flow:
        """The flow on which what this model learns of each part grows evenly in t: :func:`bfn.losses.even_flow`."""
        return losses.even_flow(self, self.as_data(x), n_times, generator)

    def as_data(self, x: Data) -> Tensor:
        """A batch of data as a tensor that the flow takes; arrays are converted, with floats in the model's type."""
        if not isinstance(x, Tensor | Mapping):
            x = as_tensor("data", x, device=self.device)
            x = x.to(self.dtype) if x.is_floating_point() else x
        shape = self.data_shape
        if self.info[LENGTHS] is not None and isinstance(x, Tensor) and 1 < x.ndim == len(shape) + 1:
            # Batches of short sequences need not be padded up to the longest of all.
            shape = (min(x.shape[1], shape[0]), *shape[1:])
        packed = self.flow.pack(x, shape)
        value_range = self.info[VALUE_RANGE]
        if value_range is not None and packed.numel():
            self._check_range(packed, value_range)
        return packed

    def _check_range(self, x: Tensor, value_range: tuple[float, float]) -> None:
        low, high = value_range
        margin = (high - low) / 2
        if float(x.min()) < low - margin or float(x.max()) > high + margin:
            raise UserError(
                f"data from {float(x.min()):g} to {float(x.max()):g}: the model was made for {low:g} to {high:g}; "
                "scale them first"
            )

    # ``model.sample(n, ...)`` is ``bfn.sample(model, n, ...)``: one signature for both.
    sample = sample

    @property
    def codec(self) -> Codec:
        """How data are encoded and samples decoded: that of the model's info, with defaults by flow and shape."""
        return codec_for(self.info, self.flow, self.data_shape)

    def encode(self, data: Any) -> dict[str, Any]:
        """Return data as people have them, such as strings or a DataFrame, in the form of :meth:`loss`.

        Returns:
            ``x``, and ``present`` if samples have different lengths: ``model.loss(**model.encode(data))``.
        """
        x, present = self.codec.encode(data)
        return {"x": x} if present is None else {"x": x, "present": present}

    def decode(self, x: Samples | Tensor | Mapping[str, Tensor], present: Any = None) -> Any:
        """Return samples as people look at them.

        Args:
            x: samples as :meth:`sample` returns them, or their tensors.
            present: bool, like x, True where a sample has data, if x are tensors; padding is not decoded.

        Returns:
            Strings, images as uint8 (n, height, width, channel), numbers in units, names of classes, or a DataFrame;
            for joint data a mapping of these.
        """
        return x.decoded if isinstance(x, Samples) else self.codec.decode(x, present)

    def log_likelihood(
        self, x: Data, method: likelihood.Method = "ode", nfe: int | None = None, **settings: Any
    ) -> Likelihood:
        """log p(x) of each sample, or a bound: see :func:`bfn.likelihood.log_likelihood` for the settings."""
        return likelihood.log_likelihood(self, self.as_data(x), method, nfe, **settings)


class BFN(Model, nn.Module):
    """A Bayesian flow network: any network, on a flow, read by a head, with what is known of it.

    network: ``network(inputs, t) -> output``; conditions are passed on by their names, ``network(inputs, t,
        label=label)``, and so is what of padded data is there, ``present=``, to a network that takes it.
        inputs: continuous mu, (batch, *data_shape); discrete theta, (batch, *data_shape, K). t: (batch,).
    predicts: "noise", "data", "preconditioned" (continuous), "logits" (discrete), or a :class:`bfn.Head`.
    info: facts such as classes and alphabet; a network that says how many classes it knows gets them equally frequent.
    """

    def __init__(
        self,
        network: Callable[..., Tensor],
        flow: Flow,
        predicts: str | Head | Mapping[str, str | Head],
        data_shape: Shape | list[int] | Mapping[str, Shape],
        info: ModelInfo | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.data_shape = dict(data_shape) if isinstance(data_shape, Mapping) else tuple(data_shape)
        self.flow = flow.for_shape(self.data_shape)
        self.head = make_head(predicts, self.flow)
        self.info = ModelInfo() if info is None else info
        n_labels = _n_labels(network)
        if n_labels and self.info.classes is None:
            self.info.classes = Classes.equal(n_labels)
        if n_labels is not None and len(self.info.classes or ()) != n_labels:
            raise UserError(f"{len(self.info.classes or ())} classes: the network was made for {n_labels}")
        self._in_half = self._own_dtype() == torch.float16
        self.codec.check(self.flow)

    def _own_dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What ``half``, ``to`` and the like go through."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._in_half = self._own_dtype() == torch.float16
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Type that states and losses are kept in: float32 beside a network in float16, whose range is too small."""
        own = self._own_dtype()
        if own == torch.float16 and not self._in_half:
            raise UserError("the network was put into float16 by itself: convert the whole model, model.half()")
        return torch.float32 if own == torch.float16 else own

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def starts_at_zero(self) -> bool:
        return self.head.starts_at_zero

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        present = conditions.pop("present", None)
        if present is not None:
            # Nothing is known where nothing is: networks that know no padding see the same there, whatever it was.
            u = torch.where(self.flow.over_variables(present, u), u, torch.zeros((), dtype=u.dtype, device=u.device))
            if takes(self.network, "present"):
                conditions["present"] = self.head.shown_presence(self.flow, present, u)
        inputs = self.head.inputs(self.flow, u, level)
        try:
            if self._in_half:
                given = (_cast(inputs, torch.float16), level.t.half())
                raw = _cast(self.network(*given, **_cast(conditions, torch.float16)), u.dtype)
            else:
                raw = self.network(inputs, level.t, **conditions)
        except TypeError:
            unknown = next((name for name in conditions if not takes(self.network, name)), None)
            if unknown is None:
                raise
            name = type(self.network).__name__
            raise NetworkError(
                f"{unknown} given: the network {name} takes no argument {unknown!r}; leave {unknown} out"
            ) from None
        wrong = self.head.check_raw(self.flow, raw, tuple(u.shape[1:]), len(u))
        if wrong is not None:
            raise NetworkError(f"the network's output at t={float(level.t.flatten()[0]):.6g} {wrong}")
        output = self.head.output(self.flow, raw, u, level)
        draw = getattr(self.network, "draw_whole", None)
        if draw is None or not isinstance(output, Categorical):
            return output
        return replace(output, together=partial(draw, inputs, raw, conditions.get("present")))

    @property
    def draws_whole(self) -> bool:
        return getattr(self.network, "draw_whole", None) is not None

    def data_std(self, part: str = "") -> float | None:
        head = self.head.of_part(part)
        return head.data_std if isinstance(head, PreconditionedHead) else None

    def save(self, directory: Path | str, *, dtype: str = "float32") -> Path:
        """Write ``model.safetensors`` and ``config.json``: see :func:`bfn.storage.models.save`."""
        return storage.save(self, directory, dtype=dtype)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Floating tensors in another type, within mappings too."""
    if isinstance(values, Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    return {name: _cast(value, dtype) for name, value in values.items()} if isinstance(values, Mapping) else values


def takes(network: Any, name: str) -> bool:
    """Whether a network may be called with an argument of that name."""
    call = network.forward if isinstance(network, nn.Module) else network
    parameters = inspect.signature(call).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _n_labels(network: Any) -> int | None:
    """How many classes a network knows, as its config says; None where it says nothing."""
    config = getattr(network, "config", None)
    known = config.get("n_labels") if isinstance(config, Mapping) else None
    return known if isinstance(known, int) else None


def load(name: Path | str, network: nn.Module | None = None) -> BFN:
    """A model from a directory, or a bundled one by its name; float32, in evaluation mode.

    network: needed where the model was stored with a network that is not one of ``bfn.networks``.
    """
    parts = storage.read_parts(name, network)
    try:
        model = BFN(*parts)
    except UserError as error:
        raise StorageError(f"{storage.locate(name) / storage.CONFIG}: {error}") from None
    model.eval()
    return model
