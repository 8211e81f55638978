"""Contents of small files, for the tests of data."""

import hashlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image


def pixels(*shape: int) -> np.ndarray:
    """Return random bytes, the same ones every time."""
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format."""
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def image_file(array: np.ndarray, form: str = "PNG") -> bytes:
    """Return the file of an image."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, form)
    return out.getvalue()


def zipped(members: dict[str, bytes | str]) -> bytes:
    """Return a .zip file, or a wheel, of members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def sha(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def write(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def some_table(n: int = 600) -> pd.DataFrame:
    """Return a table with a column of every kind."""
    rng = np.random.default_rng(1)
    zeros = np.where(rng.random(n) < 0.6, 0.0, rng.lognormal(size=n))
    return pd.DataFrame({
        "height": rng.normal(size=n),
        "price": np.round(rng.lognormal(3, 1, n), 2),
        "count": rng.integers(0, 10**6, n),
        "hundreds": rng.integers(0, 10**4, n) * 100,
        "gain": zeros,
        "age": rng.integers(20, 40, n),
        "city": rng.choice(["Rome", "Paris", "Oslo"], n, p=[0.7, 0.295, 0.005]),
        "grade": pd.Categorical(rng.choice(["low", "high"], n), ["low", "mid", "high"], ordered=True),
        "member": rng.random(n) < 0.3,
        "born": pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.integers(0, 9000, n), "D"),
        "visit": pd.Series(rng.integers(0, 10**6, n)).map(lambda s: f"{pd.Timestamp(s * 60, unit='s'):%Y-%m-%d %H:%M}"),
        "score": pd.array(rng.integers(0, 10**4, n), dtype="Int64"),
        "always": "yes",
    }).assign(score=lambda table: table["score"].mask(rng.random(n) < 0.2))  # fmt: skip


class Bomb:
    """An object that ends the test run when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)
