"""What is known of the samples' likelihoods."""

from dataclasses import dataclass

from torch import Tensor

from bfn.quality.bits import Estimate, mean_and_error, nats_to_bits


@dataclass(frozen=True)
class Likelihood:
    """What is known of each sample's log-likelihood, in nats.

    log_prob: (n,). A lower bound, in expectation, where ``is_bound``.
    error: (n,), its standard error from what was drawn for the sample; 0 where nothing was, NaN where only one draw was
        made. Of a bound it is that of the transmission; the reconstruction's one draw comes on top.
    nfe: (n,), network calls made.
    n_dims: dimensions of a sample. is_density: of a density, rather than of a probability.
    reconstruction: (n,), the part -log p_O(x) of -log_prob, where a bound has it.
    """

    log_prob: Tensor
    error: Tensor
    nfe: Tensor
    n_dims: int
    is_bound: bool
    is_density: bool
    reconstruction: Tensor | None = None

    @property
    def nats(self) -> Estimate:
        """Mean of -log p a sample, with its standard error over the samples."""
        return _estimate(-self.log_prob)

    @property
    def bits(self) -> Estimate:
        """Mean of -log2 p a dimension (a character, for text), with its standard error over the samples."""
        return _estimate(-self.log_prob * (nats_to_bits(1.0) / self.n_dims))

    @property
    def parts(self) -> dict[str, Estimate]:
        """Bits a dimension: "total", and of a bound "transmission" and "reconstruction" as well."""
        parts = {"total": self.bits}
        if self.reconstruction is not None:
            scale = nats_to_bits(1.0) / self.n_dims
            parts["transmission"] = _estimate((-self.log_prob - self.reconstruction) * scale)
            parts["reconstruction"] = _estimate(self.reconstruction * scale)
        return parts


def _estimate(values: Tensor) -> Estimate:
    """Mean and standard error over the samples, which one sample alone does not have."""
    return mean_and_error(values) if len(values) > 1 else Estimate(float(values[0]), float("nan"), 1)
