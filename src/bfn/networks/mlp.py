"""A residual multilayer perceptron for vectors."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.networks.arguments import config_of, require_positive, require_present, require_shape
from bfn.networks.conditioning import Conditioning, Declarations, centre, combine, zeroed


class ResidualBlock(nn.Module):
    """Two linear layers; scale and shift of the normalised features come from the condition."""

    def __init__(self, width: int, condition_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(condition_features, 2 * width))
        self.hidden = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = zeroed(nn.Linear(width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map x (batch, width), condition (batch, condition_features) -> (batch, width)."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        hidden = self.hidden(torch.addcmul(shift, self.norm(x), 1 + scale))
        return x + self.out(self.dropout(F.silu(hidden)))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Perceptron over vectors.

    continuous (n_classes = 0): inputs (batch, in_features) -> (batch, out_features)
    discrete: theta (batch, in_features, n_classes) -> logits (batch, out_features, n_classes)

    Args:
        in_features: numbers, or discrete variables, in a vector.
        out_features: those of the output; in_features if None.
        n_classes: number of classes of a discrete variable, 0 for continuous vectors.
        width: features inside the network.
        n_blocks: number of residual blocks.
        condition_features: width of the vector of time and conditions.
        n_labels: number of labels, 0 for none.
        dropout: probability of dropping a hidden feature.
        conditions: by name, numbers as {"shape": [8], "mean": 0.0, "std": 1.0} (a single one with shape []), classes as
            {"shape": [], "n_classes": 5}.
        n_times: times of a sample, the number of parts of joint data that have their own.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        *,
        n_classes: int = 0,
        width: int = 128,
        n_blocks: int = 3,
        condition_features: int = 128,
        n_labels: int = 0,
        dropout: float = 0.0,
        conditions: Declarations | None = None,
        n_times: int = 1,
    ) -> None:
        out_features = in_features if out_features is None else out_features
        super().__init__()
        self.config = config_of("mlp", locals())
        require_positive(
            self.config, "in_features", "out_features", "width", "n_blocks", "condition_features", "n_times"
        )
        if n_classes < 0 or n_classes == 1:
            raise UserError(f"n_classes={n_classes}: expected 0 (continuous) or at least 2 classes")
        self.in_features, self.out_features, self.n_classes, self.n_times = (
            in_features,
            out_features,
            n_classes,
            n_times,
        )
        places = max(n_classes, 1)
        self.conditioning = Conditioning(condition_features, n_labels, conditions=conditions, n_times=n_times)
        if self.conditioning.sequences:
            name = self.conditioning.sequences[0]
            raise UserError(f"condition {name} is a sequence: an MLP takes none, a transformer and a U-Net do")
        self.stem = nn.Linear(in_features * places, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition_features, dropout) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = zeroed(nn.Linear(width, out_features * places))

    def forward(
        self,
        inputs: Tensor,
        t: Tensor,
        label: Tensor | None = None,
        present: Tensor | None = None,
        **conditions: Tensor | None,
    ) -> Tensor:
        """Predict from inputs at times t (batch,), 0 nothing known and 1 data; label (batch,) int64, -1 = no class.

        present, bool (batch, in_features), is False where a vector has no entry; conditions are (batch, ...), -1 or NaN
        where there is none.
        """
        classes = (self.n_classes,) if self.n_classes else ()
        require_shape(inputs, t, ("batch", self.in_features, *classes), self.n_times)
        context = self.conditioning(t, label, **conditions)
        entries = centre(inputs) if self.n_classes else inputs
        if present is not None:
            require_present(present, inputs.shape[:2])
            entries = entries.masked_fill(~(present[..., None] if self.n_classes else present), 0.0)
        hidden = self.stem(entries.flatten(1))
        for block in self.blocks:
            hidden = block(hidden, context.vector)
        output: Tensor = self.head(self.norm(hidden))
        if not self.n_classes:
            return output
        logits = output.reshape(len(inputs), self.out_features, self.n_classes)
        return combine(inputs, logits) if self.in_features == self.out_features else logits
