"""Train the bundled classifier of MNIST digits: ``python tools/train_classifier.py --out model.safetensors``."""

import argparse
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.data.images import Images
from bfn.data.loading import load
from bfn.quality.features import FORMAT, DigitClassifier, check_images, classify, load_classifier

N_TRAIN = 60_000


def train_classifier(
    images: Tensor,
    labels: Tensor,
    *,
    n_epochs: int = 15,
    batch_size: int = 128,
    learning_rate: float = 4e-3,
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> DigitClassifier:
    """Train on images (n, 1, 28, 28) in [-1, 1] and labels (n,). The same seed gives the same weights.

    The optimiser is AdamW with a one-cycle learning rate; images are augmented by small rotations, scalings and shifts.

    Args:
        images, labels: the training data.
        n_epochs, batch_size, learning_rate, seed: settings.
        on_epoch: called with the number of each finished epoch and its loss.
    """
    check_images(images)
    if labels.shape != images.shape[:1]:
        raise UserError(f"labels of shape {tuple(labels.shape)}: expected one label for each of {len(images)} images")
    # Layers draw their first weights from the global generator, which fork_rng restores.
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
            on_epoch(epoch + 1, total / len(images))
    return model.eval()


def _jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate images by up to 10 degrees, scale them by up to 10 % and shift them by up to 2 pixels."""
    uniform = 2 * torch.rand(4, len(images), generator=generator) - 1
    angle, scale = uniform[0] * math.radians(10), 1 + 0.1 * uniform[1]
    shift = uniform[2:] * (2 * 2 / images.shape[-1])
    cos, sin = scale * angle.cos(), scale * angle.sin()
    theta = torch.stack((torch.stack((cos, -sin, shift[0]), -1), torch.stack((sin, cos, shift[1]), -1)), 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def save_classifier(model: DigitClassifier, path: Path | str, metadata: Mapping[str, str] | None = None) -> None:
    """Write the weights in float16 with metadata."""
    state = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(state, path, {"format": FORMAT, **(metadata or {})})


def main() -> None:
    """Train on the 60,000 training images of MNIST, print the accuracy on the test images, and write the classifier."""
    parser = argparse.ArgumentParser(description=main.__doc__)
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

    def show(epoch: int, loss: float) -> None:
        print(f"epoch {epoch}/{arguments.epochs}: loss {loss:.4f}", flush=True)

    start = time.perf_counter()
    model = train_classifier(
        images[:N_TRAIN], labels[:N_TRAIN], n_epochs=arguments.epochs, seed=arguments.seed, on_epoch=show
    )
    save_classifier(model, arguments.out)
    # The accuracy is that of the stored weights, in float16.
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
