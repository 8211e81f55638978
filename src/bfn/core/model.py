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

from bfn._utils.arguments import as_tensor
from bfn.core import losses
from bfn.core.codec import CODEC, Codec, codec_for
from bfn.core.conditions import CLASSES, LENGTHS, Classes, as_values, pack_present
from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import Flow, NoiseLevel, Shape
from bfn.core.heads import Categorical, Head, Output, PreconditionedHead, make_head
from bfn.core.info import VALUE_RANGE, ModelInfo
from bfn.core.losses import Weighting, n_present, weighted_loss, weighting_of
from bfn.core.registry import room_function
from bfn.core.samples import Samples
from bfn.core.sampling import sample

Data = Tensor | np.ndarray[Any, Any] | Mapping[str, Any]
"""A batch of data as users give it: a tensor, an array, or a mapping of parts."""


class Model(ABC):
    """Anything that predicts data from a state: ``BFN``, and the exact models of ``bfn.exact``.

    Attributes:
        flow: how the data are noised.
        data_shape: shape of one sample, a tuple, or a mapping with the shape of each part.
        starts_at_zero: whether the prediction is defined at t = 0.
    """

    flow: Flow
    data_shape: Any
    starts_at_zero: bool = True

    @cached_property
    def info(self) -> ModelInfo:
        """Facts about the model and its training data."""
        return ModelInfo()

    @property
    def dtype(self) -> torch.dtype:
        """Type of the states."""
        return torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return torch.device("cpu")

    @property
    def draws_whole(self) -> bool:
        """True if the network can draw all variables of a sample together."""
        return False

    @property
    def form(self) -> str:
        """Kind of decoded samples: "text", "images", "numbers" or "parts"."""
        return self.codec.form

    def data_std(self, part: str = "") -> float | None:
        """Return the standard deviation of a part of the data that the head was made for, if any."""
        return None

    @abstractmethod
    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """Return the distribution over the data given the state.

        Args:
            u: state, (batch, *state_shape).
            level: its noise level.
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
        """Return the continuous-time loss, a bound on the negative log-likelihood, (batch,), nats per dimension.

        Args:
            x: data, (batch, *data_shape), or a mapping of parts.
            t: times, (batch,), drawn stratified if None.
            n_steps: number of steps of the n-step loss, which is returned instead.
            generator: source of the random numbers: the times, then the noise (then the message, for n steps).
            label, condition: what the network is given for each sample; -1 and NaN are no condition.
            weighting: what to train instead of the bound, for better samples: a name of ``bfn.losses.WEIGHTINGS``, such
                as "edm" for numbers and "cross-entropy" for classes, or a weighting; it draws the times itself. For
                joint data it holds for every part ("edm" and "cross-entropy" each for the parts that they fit), or a
                mapping gives one for each part.
            present: bool, like the data, True where there is data. Padding does not count.
        """
        x, conditions = self.as_batch(x, label, condition, present)
        if weighting is not None:
            if t is not None or n_steps is not None:
                raise UserError("weighting beside t or n_steps: a weighting draws its own times; leave them out")
            return weighted_loss(self, x, weighting_of(self, weighting), generator, conditions)
        if n_steps is not None:
            return losses.n_step_loss(self, x, n_steps, t, generator, conditions)
        return losses.continuous_time_loss(self, x, t, generator, conditions)

    def loss_of_parts(
        self,
        x: Data,
        t: Tensor | None = None,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
        condition: Mapping[str, Tensor] | None = None,
        present: Any = None,
    ) -> dict[str, Tensor]:
        """Return the share of each part in the continuous-time loss, (batch,), nats. Their sum is ``loss``."""
        x, conditions = self.as_batch(x, label, condition, present)
        mask = conditions.get("present")
        values = losses.continuous_time_loss_values(self, x, t, generator, conditions)
        values = values if mask is None else torch.where(mask, values, 0.0)
        n = n_present(x, mask)
        return {name: own.reshape(len(x), -1).sum(1) / n for name, own in self.flow.split(values).items()}

    def reconstruction_loss(
        self,
        x: Data,
        generator: torch.Generator | None = None,
        label: Tensor | None = None,
        condition: Mapping[str, Tensor] | None = None,
        present: Any = None,
    ) -> Tensor:
        """Return -log p_O(x) at t = 1, (batch,), nats per dimension."""
        x, conditions = self.as_batch(x, label, condition, present)
        return losses.reconstruction_loss(self, x, generator, conditions)

    def even_flow(self, x: Data, n_times: int = 64, generator: torch.Generator | None = None) -> Flow:
        """Return a flow on which information about each part grows evenly in t: ``bfn.schedules.even_flow``."""
        flow: Flow = room_function("even-flow")(self, self.as_data(x), n_times, generator)
        return flow

    def as_batch(
        self, x: Data, label: Tensor | None, condition: Mapping[str, Tensor] | None, present: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a batch of data, packed, and its conditions by name."""
        x = self.as_data(x)
        if label is None and condition is None and present is None:
            return x, {}
        return x, self._conditions_of(x, label, condition, present)

    def _conditions_of(
        self, x: Tensor, label: Tensor | None, condition: Mapping[str, Tensor] | None, present: Any
    ) -> dict[str, Tensor]:
        """Return the conditions of packed data by name."""
        n, device = len(x), x.device
        if condition is not None and not isinstance(condition, Mapping):
            raise UserError(f"condition of type {type(condition).__name__}: expected {{name: values}}")
        conditions = {name: as_values(name, value, n).to(device) for name, value in (condition or {}).items()}
        if label is not None:
            conditions["label"] = as_tensor("label", label, device=device)
        if present is not None:
            shape = self.flow.shape_of(x, self.data_shape)
            conditions["present"] = pack_present(self.flow, present, shape, n, device)
        return conditions

    def as_data(self, x: Data) -> Tensor:
        """Return a batch of data as one tensor; arrays are converted, floats to the model's type."""
        x = x if isinstance(x, Tensor | Mapping) else self._from_array(x)
        shape = self.data_shape
        if self.info[LENGTHS] is not None and isinstance(x, Tensor) and 1 < x.ndim == len(shape) + 1:
            # Batches of short sequences need not be padded to the longest of all.
            shape = (min(x.shape[1], shape[0]), *shape[1:])
        packed = self.flow.pack(x, shape)
        if (value_range := self.info[VALUE_RANGE]) is not None and packed.numel():
            _check_range(packed, *value_range)
        return packed

    def _from_array(self, x: Any) -> Tensor:
        values = as_tensor("data", x, device=self.device)
        return values.to(self.dtype) if values.is_floating_point() else values

    # ``model.sample(n, ...)`` is ``bfn.sample(model, n, ...)``: one signature for both.
    sample = sample

    @property
    def codec(self) -> Codec:
        """The codec of the model's info, with defaults by flow and shape."""
        return codec_for(self.info, self.flow, self.data_shape)

    def encode(self, data: Any) -> dict[str, Any]:
        """Return data as people have them, such as strings or a DataFrame, in the form of ``loss``.

        Returns:
            ``x``, and ``present`` if samples have different lengths: ``model.loss(**model.encode(data))``.
        """
        x, present = self.codec.encode(data)
        return {"x": x} if present is None else {"x": x, "present": present}

    def decode(self, x: Samples | Data, present: Any = None) -> Any:
        """Return samples as people look at them.

        Args:
            x: samples as ``sample`` returns them, or their tensors.
            present: bool, like x, True where a sample has data, if x are tensors. Padding is not decoded. If it is left
                out and the model has lengths, the class 0 at the end of a sequence counts as padding.

        Returns:
            Strings, images as uint8 (n, height, width, channel), numbers in units, names of classes, or a DataFrame;
            for joint data a mapping of these.
        """
        if isinstance(x, Samples):
            return x.decoded
        shapes, lengths = self.flow.by_part("data_shape", self.data_shape), self.info[LENGTHS]
        parts, masks = self.flow.by_part("samples", x), {}
        for name, values in parts.items():
            what = f"part {name!r} of samples" if name else "samples"
            parts[name] = own = as_tensor(what, values)
            # Sequences may be of any length; of other data every side is fixed.
            is_sequence = len(shapes[name]) == 1 and not own.is_floating_point()
            first = 2 if is_sequence or (lengths is not None and name in lengths.parts) else 1
            if own.ndim != len(shapes[name]) + 1 or tuple(own.shape[first:]) != tuple(shapes[name])[first - 1 :]:
                expected = ", ".join(["n", *map(str, shapes[name])])
                raise UserError(f"{what} of shape {tuple(own.shape)}: expected ({expected})")
            try:
                self.flow.parts[name].check(own, tuple(own.shape[1:]))
            except UserError as error:
                raise UserError(f"{what}: {error}") from None
            if lengths is not None and name in lengths.parts and own.ndim == 2 and not own.is_floating_point():
                positions = torch.arange(1, own.shape[1] + 1, device=own.device)
                masks[name] = positions <= ((own != 0) * positions).amax(1, keepdim=True).clamp(min=lengths.shortest)
        present = self.flow.from_parts(masks) if masks and present is None else present
        return self.codec.decode(self.flow.from_parts(parts), present)

    def log_likelihood(self, x: Data, method: str = "ode", nfe: int | None = None, **settings: Any) -> Any:
        """Return log p(x) of each sample, or a bound; see ``bfn.likelihood.log_likelihood`` for the settings."""
        return room_function("log-likelihood")(self, self.as_data(x), method, nfe, **settings)


class BFN(Model, nn.Module):
    """A Bayesian flow network: any network, with a flow, a head that reads its output, and facts about the model.

    Args:
        network: called as ``network(inputs, t)``. inputs: for numbers mu, (batch, *data_shape); for classes theta,
            (batch, *data_shape, K); a mapping for joint data. t: (batch,). Conditions are passed by their names, such
            as ``label=``, and so is the mask of the data that exist, if the network takes ``present=``.
        flow: how the data are noised.
        predicts: "noise", "data" or "preconditioned" for numbers, "logits" for classes, or a
            ``bfn.core.heads.Head``; a mapping for joint data.
        data_shape: shape of one sample, or a mapping of shapes.
        info: facts such as classes. A network whose config says how many classes it knows gets equally frequent ones.
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
        self.starts_at_zero = self.head.starts_at_zero
        self.info = ModelInfo() if info is None else info
        config = getattr(network, "config", None)
        n_labels = config.get("n_labels") if isinstance(config, Mapping) else None
        classes = self.info[CLASSES]
        if isinstance(n_labels, int) and n_labels != (0 if classes is None else len(classes.names)):
            if classes is not None:
                raise UserError(f"{len(classes)} classes: the network was made for {n_labels}")
            self.info[CLASSES] = Classes.equal(n_labels)
        self._in_half = self._own_dtype() == torch.float16
        if (codec := self.info[CODEC]) is not None:
            codec.check(self.flow)

    def __repr__(self) -> str:
        n_weights = sum(parameter.numel() for parameter in self.parameters())
        return (
            f"BFN({_class_name(self.network)} of {n_weights:,} weights, {self.flow}, {self.head}, "
            f"data_shape={self.data_shape}, facts: {', '.join(self.info.entries) or 'none'})"
        )

    def _own_dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert the weights; ``half``, ``to`` and the like call this."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._in_half = self._own_dtype() == torch.float16
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Type of states and losses: float32 for a network in float16, whose range is too small."""
        own = self._own_dtype()
        return own if own != torch.float16 else self._dtype_beside_half()

    def _dtype_beside_half(self) -> torch.dtype:
        if not self._in_half:
            raise UserError("the network was put into float16 by itself: convert the whole model, model.half()")
        return torch.float32

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def draws_whole(self) -> bool:
        return getattr(self.network, "draw_whole", None) is not None

    def data_std(self, part: str = "") -> float | None:
        head = self.head.of_part(part)
        return head.data_std if isinstance(head, PreconditionedHead) else None

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        if "present" in conditions:
            u, conditions = self._without_padding(u, **conditions)
        inputs = self.head.inputs(self.flow, u, level)
        raw = self._call(inputs, level.t, conditions, u.dtype)
        wrong = self.head.check_raw(self.flow, raw, tuple(u.shape[1:]), len(u))
        if wrong is not None:
            raise NetworkError(f"the network's output at t={float(level.t.flatten()[0]):.6g} {wrong}")
        output = self.head.output(self.flow, raw, u, level)
        if isinstance(output, Categorical) and (draw := getattr(self.network, "draw_whole", None)) is not None:
            return replace(output, together=partial(draw, inputs, raw, conditions.get("present")))
        return output

    def _without_padding(self, u: Tensor, present: Tensor, **conditions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the state with zeros as padding, and the conditions that the network takes."""
        # Networks that know no padding see the same there in every sample.
        u = torch.where(self.flow.over_variables(present, u), u, torch.zeros((), dtype=u.dtype, device=u.device))
        if takes(self.network, "present"):
            conditions["present"] = self.head.shown_presence(self.flow, present, u)
        return u, conditions

    def _call(self, inputs: Any, t: Tensor, conditions: dict[str, Tensor], dtype: torch.dtype) -> Any:
        """Call the network; float16 networks get float16 inputs, and their output is converted."""
        try:
            if not self._in_half:
                return self.network(inputs, t, **conditions)
            inputs, conditions = _cast(inputs, torch.float16), _cast(conditions, torch.float16)
            return _cast(self.network(inputs, t.half(), **conditions), dtype)
        except TypeError:
            for name in conditions:
                self._check_takes(name)
            raise

    def _check_takes(self, name: str) -> None:
        """Raise a NetworkError if the network takes no argument of that name."""
        if not takes(self.network, name):
            network = _class_name(self.network)
            message = f"{name} given: the network {network} takes no argument {name!r}; leave {name} out"
            raise NetworkError(message) from None

    def save(self, directory: Path | str, *, dtype: str = "float32") -> Path:
        """Write ``model.safetensors`` and ``config.json`` into a directory and return it.

        Args:
            dtype: type of the stored weights, such as "float16".
        """
        path: Path = room_function("save-model")(self, directory, dtype=dtype)
        return path


def _check_range(x: Tensor, low: float, high: float) -> None:
    """Raise a UserError for data that are far outside of the range that a model was made for."""
    least, most = float(x.min()), float(x.max())
    if least < low - (high - low) / 2 or most > high + (high - low) / 2:
        raise UserError(
            f"data from {least:g} to {most:g}: the model was made for {low:g} to {high:g}; scale them first"
        )


def takes(network: Any, name: str) -> bool:
    """Return True if a network may be called with an argument of that name."""
    call = network.forward if isinstance(network, nn.Module) else network
    parameters = inspect.signature(call).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Convert floating tensors to another type, within mappings too."""
    if isinstance(values, Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    return {name: _cast(value, dtype) for name, value in values.items()} if isinstance(values, Mapping) else values


def _class_name(value: object) -> str:
    return type(value).__name__
