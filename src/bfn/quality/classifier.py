"""A small convolutional classifier of MNIST digits: the judge of MNIST samples, and their feature extractor.

It ships with the package (`bundled/mnist-classifier`, float16). Its softmax says whether a sample looks like a digit,
its 64 penultimate activations are the features of the Frechet distance on MNIST (the place that Inception takes for
photographs).

Train it again with ``python -m bfn.quality.classifier``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.errors import UserError
from bfn.files import atomic
from bfn.likelihood import nats_to_bits
from bfn.quality.intervals import Interval, wilson_interval

N_CLASSES = 10
N_TRAIN = 60_000
_FORMAT = "bfn-digit-classifier-1"
BUNDLED_CLASSIFIER = Path(__file__).parents[1] / "bundled" / "mnist-classifier" / "model.safetensors"


class DigitClassifier(nn.Module):
    """Images (batch, 1, 28, 28) in [-1, 1] -> class logits (batch, 10).

    The features are smooth (SiLU) rather than rectified: a unit that is zero on every image would make their
    covariance singular.
    """

    def __init__(self, n_features: int = 64) -> None:
        super().__init__()
        self.n_features = n_features
        self.trunk = nn.Sequential(
            *_convolution(1, 32, kernel=5, stride=2),
            *_convolution(32, 64, kernel=3),
            nn.MaxPool2d(2),
            *_convolution(64, 64, kernel=3),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 3 * 3, n_features, bias=False),
            nn.BatchNorm1d(n_features),
            nn.SiLU(),
        )
        self.head = nn.Linear(n_features, N_CLASSES)

    def features(self, images: Tensor) -> Tensor:
        """Penultimate activations, (batch, n_features)."""
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Class logits, (batch, 10)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def _convolution(n_in: int, n_out: int, *, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


@dataclass(frozen=True)
class DigitReport:
    """What the classifier makes of a set of samples.

    Read confidence beside balance and the Frechet distance: plain noise is taken, with full confidence, for one digit.
    """

    n_samples: int
    confident_share: float
    confident_interval: Interval
    mean_confidence: float
    class_counts: tuple[int, ...]
    class_entropy: float
    """Entropy of the predicted classes in bits; log2 10 = 3.322 where all digits come equally often."""


def classify(images: Tensor, classifier: DigitClassifier | None = None, *, batch_size: int = 500) -> Tensor:
    """Class probabilities (n, 10) of images (n, 1, 28, 28) in [-1, 1]; the bundled classifier if none is given."""
    _check_images(images)
    model = load_classifier() if classifier is None else classifier
    with torch.inference_mode():
        batches = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
        return torch.cat([model(batch.float()).softmax(-1) for batch in batches])


def digit_report(probabilities: Tensor, *, confidence: float = 0.9) -> DigitReport:
    """Confidence and class balance from the (n, 10) probabilities of `classify`.

    The share of samples recognised with more than `confidence` comes with its 95 % Wilson interval.
    """
    if probabilities.ndim != 2 or probabilities.shape[1] != N_CLASSES or len(probabilities) == 0:
        raise UserError(
            f"probabilities of shape {tuple(probabilities.shape)}: expected (samples, {N_CLASSES}), not empty"
        )
    best, predicted = probabilities.max(-1)
    n_confident = int((best > confidence).sum())
    counts = torch.bincount(predicted, minlength=N_CLASSES)
    shares = counts.double() / len(predicted)
    return DigitReport(
        n_samples=len(predicted),
        confident_share=n_confident / len(predicted),
        confident_interval=wilson_interval(n_confident, len(predicted)),
        mean_confidence=best.double().mean().item(),
        class_counts=tuple(counts.tolist()),
        class_entropy=nats_to_bits(torch.special.entr(shares).sum().item()),
    )


def load_classifier(path: Path | str = BUNDLED_CLASSIFIER) -> DigitClassifier:
    """The bundled classifier, or one that `save_classifier` wrote, in float32 and evaluation mode."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise UserError(f"{path}: not a digit classifier")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from error
    model = DigitClassifier(n_features=state["head.weight"].shape[1])
    model.load_state_dict(state)
    return model.eval()


def save_classifier(model: DigitClassifier, path: Path | str, metadata: Mapping[str, str] | None = None) -> None:
    """Write the weights in float16 with `metadata`, atomically."""
    state = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in model.state_dict().items()
    }
    with atomic(path) as temporary:
        save_file(state, temporary, {"format": _FORMAT, **(metadata or {})})


@dataclass(frozen=True)
class TrainingProgress:
    """One finished pass over the training images."""

    epoch: int
    n_epochs: int
    loss: float


def train_classifier(
    images: Tensor,
    labels: Tensor,
    *,
    n_epochs: int = 15,
    batch_size: int = 128,
    learning_rate: float = 4e-3,
    seed: int = 0,
    on_epoch: Callable[[TrainingProgress], None] | None = None,
) -> DigitClassifier:
    """Train on images (n, 1, 28, 28) in [-1, 1] and labels (n,); the same seed gives the same weights.

    AdamW with a one-cycle learning rate; every image is seen slightly turned, scaled and shifted.
    """
    _check_images(images)
    if labels.shape != images.shape[:1]:
        raise UserError(f"labels of shape {tuple(labels.shape)}: expected one label for each of {len(images)} images")
    # Layers draw their first weights from the global generator: fork_rng gives it back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitClassifier()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(seed)
    n_batches = math.ceil(len(images) / batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=n_epochs * n_batches)
    for epoch in range(n_epochs):
        model.train()
        total = 0.0
        order = torch.randperm(len(images), generator=generator)
        for start in range(0, len(images), batch_size):
            index = order[start : start + batch_size]
            batch = _jitter(images[index], generator).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(batch), labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.item() * len(index)
        if on_epoch is not None:
            on_epoch(TrainingProgress(epoch + 1, n_epochs, total / len(images)))
    return model.eval()


def _jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn by up to 10 degrees, scale by up to 10 %, shift by up to 2 pixels."""
    uniform = 2 * torch.rand(4, len(images), generator=generator) - 1
    angle, scale = uniform[0] * math.radians(10), 1 + 0.1 * uniform[1]
    shift = uniform[2:] * (2 * 2 / images.shape[-1])
    cos, sin = scale * angle.cos(), scale * angle.sin()
    theta = torch.stack((torch.stack((cos, -sin, shift[0]), -1), torch.stack((sin, cos, shift[1]), -1)), 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1:] != (1, 28, 28):
        raise UserError(f"images of shape {tuple(images.shape)}: the MNIST classifier needs (batch, 1, 28, 28)")
    if len(images) == 0:
        raise UserError("no images: expected at least 1")
    check_finite(images)


def check_finite(images: Tensor) -> None:
    """An error that counts the images with NaN or infinite pixels, if there are any."""
    bad = ~torch.isfinite(images).flatten(1).all(1)
    if bad.any():
        raise UserError(
            f"{int(bad.sum())} of {len(images)} images hold NaN or infinity: expected numbers in [-1, 1]; "
            "look at the model that made them"
        )


def main() -> None:
    """Train on MNIST's 60,000 training images, say how good it is on the test images, and write it."""
    from bfn.data import Images, load

    parser = argparse.ArgumentParser(prog="python -m bfn.quality.classifier", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("mnist-classifier.safetensors"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="the order of sums, and so the weights, depend on it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    mnist = load("mnist", "all")
    if not isinstance(mnist, Images) or mnist.labels is None:
        raise TypeError("mnist: expected images with labels")
    images, labels = mnist.to_float(), mnist.labels

    def show(progress: TrainingProgress) -> None:
        print(f"epoch {progress.epoch}/{progress.n_epochs}: loss {progress.loss:.4f}", flush=True)

    start = time.perf_counter()
    model = train_classifier(
        images[:N_TRAIN], labels[:N_TRAIN], n_epochs=arguments.epochs, seed=arguments.seed, on_epoch=show
    )
    save_classifier(model, arguments.out)
    # Judged as it is shipped, in float16, and only then described.
    stored = load_classifier(arguments.out)
    accuracy = (classify(images[N_TRAIN:], stored).argmax(-1) == labels[N_TRAIN:]).float().mean().item()
    card = {
        "data": f"MNIST, {N_TRAIN} training images",
        "recipe": f"train_classifier, {arguments.epochs} epochs, seed {arguments.seed}, {arguments.threads} threads",
        "test_accuracy": f"{accuracy:.4f}",
        "minutes": f"{(time.perf_counter() - start) / 60:.1f}",
        "torch": torch.__version__,
    }
    save_classifier(stored, arguments.out, card)
    print(f"test accuracy {100 * accuracy:.2f} %, written to {arguments.out}")


if __name__ == "__main__":
    main()
