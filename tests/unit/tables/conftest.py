"""Two small tables, with synthesizers that were trained for a moment."""

import numpy as np
import pandas as pd
import pytest

from bfn.tables.synthesizer import TableSynthesizer

QUICK = {"steps": 20, "batch": 64, "width": 16, "n_blocks": 1, "progress": False}


@pytest.fixture(scope="session")
def people() -> pd.DataFrame:
    n, rng = 400, np.random.default_rng(0)
    start = rng.integers(0, 5000, n)
    return pd.DataFrame({
        "age": rng.integers(20, 60, n).astype("int64"),
        "country of birth": pd.Categorical(rng.choice(["FR", "IT", "NO"], n)),
        "income": np.where(rng.random(n) < 0.3, 0.0, np.round(rng.lognormal(3, 0.6, n), 2)),
        "start": start,
        "end": start + rng.integers(-500, 3000, n),
        "member": rng.random(n) < 0.4,
        "born": pd.Timestamp("1970-01-01") + pd.to_timedelta(rng.integers(0, 9000, n), "D"),
        "grade": pd.Categorical(rng.choice(["low", "mid", "high"], n), ["low", "mid", "high"], ordered=True),
        "note": pd.Series(rng.choice(["yes", "no"], n), dtype=object).mask(rng.random(n) < 0.2),
    })  # fmt: skip


@pytest.fixture(scope="session")
def cities() -> pd.DataFrame:
    """city is Rome (0.7) or Oslo; warmth is normal about +2 or -2 by city; visits are missing in Oslo half the time."""
    n, rng = 1500, np.random.default_rng(0)
    rome = rng.random(n) < 0.7
    warmth = np.where(rome, 2.0, -2.0) + 0.5 * rng.normal(size=n)
    visits = pd.Series(rng.integers(0, 4000, n), dtype="Int64").mask(~rome & (rng.random(n) < 0.5))
    city = pd.Categorical(np.where(rome, "Rome", "Oslo"), ["Oslo", "Rome", "Bonn"])
    return pd.DataFrame({"city": city, "warmth": warmth, "visits": visits, "planet": "Earth", "south": rome})


@pytest.fixture
def quick_settings() -> dict[str, object]:
    return dict(QUICK)


@pytest.fixture(scope="session")
def of_people(people) -> TableSynthesizer:
    return TableSynthesizer(**QUICK).fit(people)


@pytest.fixture(scope="session")
def of_cities(cities) -> TableSynthesizer:
    return TableSynthesizer(**QUICK).fit(cities.head(300))


@pytest.fixture(scope="session")
def fitted(cities) -> TableSynthesizer:
    """Trained long enough to know the rules of the cities."""
    settings = {"steps": 1200, "batch": 128, "width": 64, "n_blocks": 2, "dropout": 0.0, "lr": 5e-3}
    return TableSynthesizer(**settings, progress=False).fit(cities)
