"""The divergence of the prediction: exactly, a backward pass a dimension, or by random probes."""

import torch
from torch import Tensor


def exact_trace(prediction: Tensor, u: Tensor, n_classes: int | None) -> Tensor:
    """sum_i d prediction_i / d u_i, (batch,): one backward pass a dimension.

    Class probabilities sum to 1 and do not change under shifts, so that the last class of each variable follows from
    the others: its diagonal term is minus the sum of what the others' gradients hold at its place.
    """
    flat = prediction.flatten(1)
    trace = u.new_zeros(len(u))
    for i in range(flat.shape[1]):
        last = None if n_classes is None else i - i % n_classes + n_classes - 1
        if i == last:
            continue
        (gradient,) = torch.autograd.grad(flat[:, i].sum(), u, retain_graph=True)
        gradient = gradient.flatten(1)
        trace = trace + gradient[:, i]
        if last is not None:
            trace = trace - gradient[:, last]
    return trace


def hutchinson_traces(prediction: Tensor, u: Tensor, signs: Tensor, s: float | Tensor, n_classes: int | None) -> Tensor:
    """e . J e for each probe e of random signs, (batch, probes): the trace of J on average.

    Of classes the Jacobian's blocks about the diagonal are known well, s (diag p - p p^T) were the model exact. What
    their own quadratic form misses of their trace, s (|p|^2 - (p . e)^2), is subtracted: 0 on average, and a good part
    of the estimate's noise.
    """
    traces = []
    for sign in signs:
        (gradient,) = torch.autograd.grad(prediction, u, sign, retain_graph=True)
        trace = (gradient * sign).flatten(1).sum(1)
        if n_classes is not None:
            p = prediction.detach()
            missed = p.square().sum(-1, keepdim=True) - (p * sign).sum(-1, keepdim=True).square()
            trace = trace - (s * missed).flatten(1).sum(1)
        traces.append(trace)
    return torch.stack(traces, 1)
