"""A small convolutional classifier of MNIST digits: the judge of MNIST samples, and their feature extractor.

It ships with the package (`bundled/mnist-classifier`, float16). Its softmax says whether a sample looks like a digit,
its 64 penultimate activations are the features of the Frechet distance on MNIST (the place that Inception takes for
photographs). ``tools/train_classifier.py`` trains it again.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors
from torch import Tensor, nn

from bfn import weights_file
from bfn.errors import UserError
from bfn.quality.features import check_finite, extract

__all__ = ["BUNDLED_CLASSIFIER", "DigitClassifier", "check_images", "classify", "load_classifier", "save_classifier"]

N_CLASSES = 10
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


def classify(images: Tensor, classifier: DigitClassifier | None = None, *, batch_size: int = 500) -> Tensor:
    """Class probabilities (n, 10) of images (n, 1, 28, 28) in [-1, 1]; the bundled classifier if none is given."""
    check_images(images)
    model = classifier or load_classifier()
    return extract(images, lambda some: model(some.float()).softmax(-1), batch_size=batch_size)


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
    weights_file.write(Path(path), state, {"format": _FORMAT, **(metadata or {})})


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of 28 x 28 images."""
    if images.ndim != 4 or images.shape[1:] != (1, 28, 28):
        raise UserError(f"images of shape {tuple(images.shape)}: the MNIST classifier needs (batch, 1, 28, 28)")
    if len(images) == 0:
        raise UserError("no images: expected at least 1")
    check_finite(images)
