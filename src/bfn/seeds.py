"""Seeds from seeds: what is drawn at random in pieces does not depend on who makes them, where, and when."""

import hashlib

import torch

__all__ = ["block_generator", "derived_generator", "derived_seed"]


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from a few numbers and words; nearby ones give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def derived_generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by :func:`derived_seed`."""
    return torch.Generator(device).manual_seed(derived_seed(*parts))


def block_generator(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of a block of samples, by its number: the first has the seed itself, as a sample of its own has."""
    return torch.Generator(device).manual_seed(derived_seed(seed, "block", index) if index else seed)
