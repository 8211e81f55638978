"""The second judge: features and text models by which nothing is tuned or calibrated.

Solvers are tuned and calibrated by other features (``bfn.tuning``) on training data. Figures can be judged by this: for
images the features of a network of another make, trained on other images, or, for images it was not made for, of the
same network with random weights; for text the bits a character of an n-gram model of held-out text; for vectors the
distances of their projections. ``tools/train_judge.py`` trains the networks again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate
from bfn._utils.files import atomic
from bfn._utils.pieces import digest
from bfn.networks.ngram_counts import BackoffTables, count_backoff
from bfn.quality.judge import JudgePart, Measure

JUDGES = Path(__file__).parents[1] / "bundled" / "judges"
"""The folder of trained networks, one file a data set, named after it."""
CONTEXT = 5
"""Symbols that the n-gram model of text looks back at."""
N_SUMMARY = 24
N_PROJECTIONS, QUANTILES = 64, 200


class JudgeNetwork(nn.Module):
    """Images (batch, channels, h, w) in [-1, 1] -> class logits, by strided 3 x 3 convolutions and smooth units.

    No pooling, no normalisation over the batch: nothing is shared with the bundled classifier. The features are of two
    kinds: how strong each pattern of a few pixels is in the image, and what the classes are told by.
    """

    def __init__(self, channels: int = 1, side: int = 28, n_classes: int = 10) -> None:
        super().__init__()
        strides, widths = ((2, 2, 2), (20, 24, 48)) if side > 8 else ((1, 2, 2), (20, 24, 40))
        layers: list[nn.Module] = []
        for n_in, n_out, stride in zip((channels, *widths), widths, strides, strict=False):
            layers.append(nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1), nn.GroupNorm(4, n_out), nn.GELU()))
            side = -(-side // stride)
        self.layers, self.summary = nn.ModuleList(layers), nn.Linear(widths[-1] * side * side, N_SUMMARY)
        self.head = nn.Linear(N_SUMMARY, n_classes)
        self.n_features = widths[1] + N_SUMMARY

    def _activations(self, images: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third = self.layers
        patterns = second(first(images.float()))
        return patterns, self.summary(third(patterns).flatten(1))

    def features(self, images: Tensor) -> Tensor:
        """(batch, n_features)."""
        patterns, summary = self._activations(images)
        return torch.cat((patterns.mean((2, 3)), summary), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Class logits."""
        logits: Tensor = self.head(nn.functional.gelu(self._activations(images)[1]))
        return logits


def judge_features(name: str, shape: tuple[int, ...]) -> JudgeNetwork:
    """The network that judges images of the set of that name; one with random weights where there is none."""
    path = JUDGES / f"{name}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20_260)
        network = JudgeNetwork(shape[0], min(shape[1:]))
    if path.is_file():
        network.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return network.eval()


def save_judge(network: JudgeNetwork, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the weights in float16, atomically."""
    with atomic(path) as temporary:
        save_file({key: value.half().contiguous() for key, value in network.state_dict().items()}, temporary,
                  dict(metadata))  # fmt: skip


@dataclass(frozen=True, eq=False)
class NGramBits(JudgePart):
    """Bits a symbol of samples under an interpolated n-gram model of text that no solver was fitted to.

    Text of a good model costs what real text costs: more is wrong text, less is dull text.
    end: the symbol that closes texts of their own lengths, and costs bits like the others; None of texts of one length.
    """

    tables: BackoffTables
    name: str
    end: int | None = None
    measures = (Measure("ngram_bits", "bits a symbol by n-grams", "real", "bits", digits=3),)

    @classmethod
    def of(cls, text: Tensor, n_classes: int) -> "NGramBits":
        """Of real text: classes in a row, (n,), or texts (n, length), -1 after the end of a shorter one."""
        end = n_classes if bool((text < 0).any()) else None
        if end is not None:
            text, n_classes = _closed(text, end), n_classes + 1
        text = text[text >= 0]
        # An n-gram is one number of 63 bits.
        context = max(1, min(CONTEXT, int(63 / log2(n_classes)) - 1))
        tables = count_backoff(text, context, n_classes, smoothing=1.0, min_count=1)
        return cls(tables, digest("ngram-bits", str(context), text), end)

    @property
    def key(self) -> str:
        return self.name

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 texts"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        base, context = self.tables.n_classes, self.tables.context
        before = 0 if self.end is None else 1  # what comes before a text is the end of another
        codes = torch.full((len(x),), self.end or 0, dtype=torch.int64)
        bits = torch.zeros(len(x), dtype=torch.float64)
        x = x if self.end is None else _closed(x, self.end)
        for i in range(x.shape[1]):
            symbols = x[:, i].clamp(min=0)
            bits -= self.tables.probability(codes, min(i + before, context), symbols).log2() * (x[:, i] >= 0)
            codes = (codes * base + symbols) % base**context
        return {"ngram_bits": mean_estimate(bits / (x >= 0).sum(1))}


def _closed(x: Tensor, end: int) -> Tensor:
    """Each text followed by the symbol of its end, (n, length + 1), and by -1."""
    padded = nn.functional.pad(x, (0, 1), value=-1)
    return padded.masked_fill((padded < 0).cumsum(1) == 1, end)


@dataclass(frozen=True, eq=False)
class Projections(JudgePart):
    """Sliced Wasserstein distance: of the quantiles of samples and of data along fixed random directions.

    In units of the data's own standard deviations, so that every variable counts alike.
    """

    reference: Tensor
    measures = (Measure("sliced_distance", "sliced Wasserstein distance", "low", digits=3),)

    @property
    def key(self) -> str:
        return digest("projections", str((N_PROJECTIONS, QUANTILES)), self.reference)

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 samples"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        generator = torch.Generator().manual_seed(0)
        scale = self.reference.flatten(1).std(0).clamp(min=1e-9)
        ways = torch.randn(len(scale), N_PROJECTIONS, generator=generator)
        ways = ways / ways.norm(dim=0) / scale[:, None]
        shares = (torch.arange(QUANTILES) + 0.5) / QUANTILES
        seen, real = x.flatten(1).float() @ ways, (self.reference.flatten(1).float() @ ways).quantile(shares, dim=0)

        def distance(index: Tensor) -> Tensor:
            found: Tensor = (seen[index].quantile(shares, dim=0) - real).square().mean().sqrt()[None]
            return found

        (figure,) = bootstrap_estimates(distance, len(seen), generator=generator, n_resamples=100)
        return {"sliced_distance": figure.within(0)}
