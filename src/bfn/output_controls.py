"""Controls of a sample: how boldly classes are drawn, which of them may be, what data to start from, fixed noise.

The first two act where the network is called, after all conditions: they turn a predict into a predict, so that every
solver works with them. What is known of the data stays as it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel, Shape
from bfn.heads import Categorical, Output
from bfn.known import Given, Known, Predict
from bfn.solvers.table import Row, Table

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["Controlled", "Noise", "controlled", "fixed_noise", "starting_data"]

Noise = Literal["fresh", "fixed"]
"""Whether noisy rows draw noise of their own, or take that of the first state."""


@dataclass(frozen=True, eq=False)
class Controlled:
    """The prediction with p_k^(1 / temperature), normalised, over the allowed classes alone.

    allowed: by the name of a part, "" where data are of one kind: bool, to broadcast against its class probabilities.
    Where variables are independent a mask is exact: the posterior of the classes given the state and that they are
    allowed is the posterior cut to them. Elsewhere the other variables do not learn of it until the state shows it.
    """

    predict: Predict
    flow: Flow
    temperature: float
    allowed: Mapping[str, Tensor]

    def __call__(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """One network call."""
        return self._act(self.predict(u, level, **conditions))

    def _act(self, output: Output) -> Output:
        if isinstance(output, Given):
            return replace(output, output=self._act(output.output))
        return output.with_parts(lambda part, own: self._act_on_part(part.name, part.flow, own), self.flow)

    def _act_on_part(self, name: str, flow: Flow, output: Output) -> Output:
        if flow.n_values is None:
            return output
        tiny = torch.finfo(output.mean.dtype).tiny
        logits = output.logits if isinstance(output, Categorical) else output.mean.clamp(min=tiny).log()
        if name in self.allowed:
            logits = logits.masked_fill(~self.allowed[name], -torch.inf)
        if self.temperature != 1:
            # From the highest one down: a small temperature then overflows to probability 0, never to infinity.
            logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        return Categorical(logits)


def controlled(
    model: Model,
    n: int,
    predict: Predict,
    known: Known | None = None,
    *,
    temperature: float = 1.0,
    allowed: Any = None,
    each: int = 1,
) -> Predict:
    """The predict under these controls; itself where they ask for nothing. known, each: as ``conditioned`` has them."""
    _check_temperature(model, temperature)
    masks = {} if allowed is None else _check_allowed(model, n, allowed, each)
    for name, mask in masks.items():
        _check_known_is_allowed(model, name, mask, known)
    masks = {name: mask for name, mask in masks.items() if not bool(mask.all())}
    return Controlled(predict, model.flow, float(temperature), masks) if masks or temperature != 1 else predict


def starting_data(model: Model, n: int, start_from: Any, t_start: float | None) -> Tensor:
    """The data to start from, packed, n of them; t_start: the time that they are noised to."""
    if t_start is None:
        raise UserError("start_from without t_start: give the time in (0, 1) to noise it to, such as t_start=0.4")
    if not 0 < t_start < 1:
        raise UserError(f"t_start={t_start:g} with start_from: expected a time in (0, 1); 0 keeps nothing of the data")
    shapes, x = model.data_shape, start_from
    try:
        if isinstance(shapes, Mapping):
            if isinstance(x, Mapping):
                x = {name: _for_each(own, n, shapes[name]) if name in shapes else own for name, own in x.items()}
        elif isinstance(x, Mapping):
            raise UserError(f"a mapping: expected data of shape {tuple(shapes)}, as this model's have no parts")
        else:
            x = _for_each(x, n, shapes)
        packed = model.flow.pack(x, shapes).to(model.device)
        if len(packed) != n:
            raise UserError(f"{len(packed)} samples of packed data: expected {n}")
        return packed
    except UserError as error:
        raise UserError(f"start_from: {error}") from None


def fixed_noise(table: Table, flow: Flow, noise: Noise = "fixed") -> Table:
    """The table to run with the first state's noise in every noisy row; itself for noise that is fresh.

    Where the predicted message stands still a state is s w + sqrt(kappa) eps, eps standard normal: a row keeps a times
    the noise so far, n, and adds so much of its own, c, that hypot(a n, c) = sqrt(kappa). If both are the same noise
    they add up as numbers: to the same amount with c = hypot(a n, c) - a n. As steps shrink that is a smooth path,

        dy = w_hat d beta + sqrt(kappa) eps ds          at g = 1, instead of sqrt(kappa) dB_beta;

    with full re-noising the same noise at every row, and what has no noise stays as it is. It is another process than
    the reverse SDE and the ODE, and its samples follow another distribution even for an exact model.
    """
    if noise not in get_args(Noise):
        raise UserError(f"noise={noise!r}: expected one of {', '.join(get_args(Noise))}")
    if noise == "fresh":
        return table
    parts = {name: _fixed_rows(table.parts.get(name, table).rows, part.kappa) for name, part in flow.parts.items()}
    rows = parts[flow.leading_part]
    return replace(table, rows=rows, parts={name: replace(own, rows=parts[name]) for name, own in table.parts.items()})


def _fixed_rows(rows: tuple[Row, ...], kappa: float) -> tuple[Row, ...]:
    amount, fixed = sqrt(kappa), []
    for row in rows:
        total = hypot(row.a * amount, row.c)
        fixed.append(replace(row, c=total - row.a * amount if row.c else 0.0))
        amount = total if row.commit else amount
    return tuple(fixed)


def _for_each(x: Any, n: int, shape: Shape) -> Tensor:
    """Data of that shape for each of n samples, from one for all or one each."""
    x = as_tensor("data", x)
    if tuple(x.shape) not in (tuple(shape), (n, *shape)):
        raise UserError(f"data of shape {tuple(x.shape)}: expected {tuple(shape)} or {(n, *shape)}")
    each: Tensor = x.expand(n, *shape)
    return each


def _check_temperature(model: Model, temperature: float) -> None:
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 < temperature < inf:
        raise UserError(f"temperature={temperature}: expected a positive number, such as 0.9 for surer samples")
    if temperature != 1 and all(flow.n_values is None for flow in model.flow.parts.values()):
        raise UserError(
            f"temperature={temperature:g}: it is for classes, which this model's data are not; leave it out"
        )


def _check_allowed(model: Model, n: int, allowed: Any, each: int) -> dict[str, Tensor]:
    """The masks of the parts, each to broadcast against the class probabilities of n samples."""
    flow, shapes = model.flow, model.flow.by_part("data_shape", model.data_shape)
    return {
        name: _check_mask(
            mask, f"allowed for part {name!r}" if name else "allowed", flow.parts[name], n, shapes[name], model.device,
            each,
        )
        for name, mask in flow.by_part("allowed", allowed).items()
    }  # fmt: skip


def _check_mask(
    given: Any, what: str, flow: Flow, n: int, data_shape: Shape, device: torch.device, each: int
) -> Tensor:
    if flow.n_values is None:
        raise UserError(f"{what}: it is for classes, and these data are numbers; leave it out")
    mask = as_tensor(what, given, device=device)
    if mask.dtype is not torch.bool:
        raise UserError(f"{what} of type {mask.dtype}: expected torch.bool, True for classes that may be drawn")
    classes = (flow.n_values,)
    shapes = tuple(dict.fromkeys([classes, (*data_shape, *classes), (n, *data_shape, *classes)]))
    if tuple(mask.shape) not in shapes:
        raise UserError(f"{what} of shape {tuple(mask.shape)}: expected {' or '.join(map(str, shapes))}")
    none = ~mask.any(-1)
    if bool(none.any()):
        where = f" at {tuple(none.nonzero()[0].tolist())}" if none.ndim else ""
        raise UserError(f"{what} has no class{where}: expected at least one True for each variable")
    return mask if mask.ndim < len(data_shape) + 2 else mask.repeat_interleave(each, 0)


def _check_known_is_allowed(model: Model, name: str, mask: Tensor, known: Known | None) -> None:
    if known is None:
        return
    x, given = (model.flow.split(values)[name] for values in (known.x.long(), known.mask))
    may = mask.expand(*x.shape, mask.shape[-1]).gather(-1, x.unsqueeze(-1)).squeeze(-1)
    wrong = given & ~may
    if bool(wrong.any()):
        raise UserError(f"known has class {int(x[wrong][0])} where allowed has it not: change one of them")
