"""Error messages of bfn.quality: each names the value, what was expected, and what to do."""

import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bfn
import tiny
from bfn.cli import main
from bfn.exact import GaussianMixture
from bfn.quality import features, frechet, metrics
from bfn.quality.comparison import Setting, crossed, measure
from bfn.quality.features import classify, extract
from bfn.quality.frechet import FeatureStatistics, frechet_distance
from bfn.quality.judge_choice import judge_for
from bfn.quality.molecules import smiles_of
from bfn.quality.table_report import TableQuality
from bfn.viz.plots import quality

IMAGES, TEXT, VECTORS = (partial(tiny.build, name) for name in ("images", "text", "vectors"))
FLOW, MIXTURE = bfn.ContinuousFlow(), GaussianMixture(torch.zeros(1, 2), stds=torch.ones(1))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def judge(n=200):
    return judge_for(VECTORS(), None, normal(n, 2).float())


def table(n):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=n), "c": rng.choice(["x", "y"], n), "y": rng.choice(["p", "q"], n)})


def rows_to_judge(rows):
    return TableQuality.of(table(50), table(50)).figures(rows)


def file(name, content):
    """Return a function of a folder that writes a file and returns its path."""

    def write(folder):
        path = folder / name
        np.save(path, content) if isinstance(content, np.ndarray) else path.write_bytes(content)
        return path

    return write


def statistics(name=""):
    return FeatureStatistics.of(normal(50, 6), extractor=name)


def damaged_statistics(folder):
    path = folder / "statistics.safetensors"
    statistics().save(path)
    path.write_bytes(path.read_bytes()[:100])
    return FeatureStatistics.load(path)


def other_statistics(folder):
    for name in ("mine", "other"):
        features.cached_statistics(folder / "s", statistics, name=name)


def judged_by_file(model, name, content, metric=None):
    return lambda folder: judge_for(model(), metric, file(name, content)(folder))


BAD_MESSAGES = [
    (lambda _: judge_for(IMAGES(), "fid", "digits"), "metric 'fid': expected one of molecules, text, pixels"),
    (lambda _: judge_for(IMAGES(), "text", "digits"), "metric='text' does not fit .* take pixels"),
    (lambda _: judge_for(IMAGES()), "say what real data"),
    (lambda _: judge_for(IMAGES(), None, torch.empty(0, 1, 8, 8)), "0 real samples"),
    (lambda _: judge_for(IMAGES(), None, torch.zeros(10, 1, 9, 9)), r"samples of shape \(10, 1, 9, 9\)"),
    (lambda folder: judge_for(IMAGES(), "pixels", "digits", features=folder / "x.pt"), "only metric 'inception'"),
    (judged_by_file(IMAGES, "a.npy", np.zeros((40, 9, 9), np.uint8)), r"images of shape \(1, 9, 9\)"),
    (judged_by_file(IMAGES, "a.txt", b"the cat " * 100), "not images, and the model's data"),
    (judged_by_file(TEXT, "a.npy", np.zeros((40, 9, 9), np.uint8)), "images, and the model is one of text"),
    (judged_by_file(VECTORS, "a.npy", np.zeros(5)), "expected numbers"),
    (judged_by_file(VECTORS, "a.txt", b"the cat " * 100), "is text, and the model is one of numbers"),
    (lambda _: judge()(torch.empty(0, 2)), "no samples"),
    (lambda _: judge()(torch.full((5, 2), math.nan)), "5 of 5 images hold NaN"),
    (lambda _: judge()(torch.zeros(5, 3)), r"expected \(n, 2\)"),
    (lambda _: judge().check(2), "n=2: .* singular; it would come out about"),
    (lambda _: measure(VECTORS(), [Setting("bfn", 3)], judge(), 0), "n=0"),
    (lambda _: measure(VECTORS(), [], judge(), 5), "no settings"),
    (lambda folder: measure(MIXTURE, [Setting("bfn", 2)], judge(), 5, store=folder / "s"), "identity="),
    (lambda _: crossed(FLOW, [], [5]), "nothing to compare"),
    (lambda _: crossed(FLOW, ["bfn-solver2"], [5]), "is for discrete data"),
    (lambda _: crossed(FLOW, ["nonsense"], [5]), "expected one of"),
    (lambda _: crossed(FLOW, ["bfn"], [5], t_start=[0.01]), "t_start=0.01: none of bfn takes it"),
    (lambda _: crossed(FLOW, ["bfn"], [5], g=[2.0]), "g=2: none of bfn takes it"),
    (lambda _: crossed(FLOW, ["bfn-solver++2"], [5], t_start=[2.0]), "t_start=2: expected a time between 0 and 1"),
    (lambda _: quality([], judge().measures[0]), "no records"),
    (lambda _: frechet_distance(normal(10, 20), normal(100, 20)), r"10 samples of 20 features in the first.*singular"),
    (lambda _: frechet_distance(normal(10, 4), torch.zeros(0, 4)), "empty"),
    (lambda _: frechet_distance(normal(10, 4), torch.full((10, 4), math.nan)), "10 of 10 samples are NaN"),
    (lambda _: frechet_distance(normal(10, 4), normal(10, 3)), "same extractor"),
    (lambda _: statistics("a") + statistics("b"), "'a' and of 'b'"),
    (damaged_statistics, "not a whole safetensors file"),
    (other_statistics, "statistics of 'mine', expected 'other'"),
    (lambda folder: features.load_classifier(file("c", b"nothing")(folder)), "not a whole safetensors file"),
    (lambda _: extract(torch.zeros(2, 3, 8, 8), nn.Identity()), "pool or flatten"),
    (lambda _: classify(torch.zeros(2, 3, 28, 28)), r"\(2, 3, 28, 28\)"),
    (lambda _: metrics.ngram_counts("abc", 0), "n=0"),
    (lambda _: metrics.class_ngram_counts(torch.zeros(2, 3, dtype=torch.int64), 4, 2), "length of at least n=4"),
    (lambda _: metrics.jensen_shannon({"a": "x"}, {"a": 1}), "counts=.*: expected numbers"),
    (lambda _: metrics.spelling_accuracy([]), "no texts"),
    (lambda _: smiles_of(["x"], "inchi"), "notation='inchi': expected smiles or selfies"),
    (lambda _: TableQuality.of(table(50), table(10)), "10 held-out rows: expected at least 30"),
    (lambda _: rows_to_judge(table(50).drop(columns="c")), "column 'c': the table to judge has a, y"),
]


@pytest.mark.parametrize(("call", "message"), BAD_MESSAGES, ids=[message[:40] for _, message in BAD_MESSAGES])
def test_wrong_input_is_explained_in_one_line(call, message, tmp_path):
    with pytest.raises(bfn.UserError, match=message) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(metrics.spelling_accuracy, [1]), "a text of type int"),
        (partial(metrics.jensen_shannon, "a", "b"), "expected a Counter"),
        (partial(frechet.frechet_distance, [1.0], [2.0]), "features of type list"),
    ],
)
def test_wrong_types_are_type_errors(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "held-out rows: data=FILE"),
        ("--data {held}", "rows it was trained on: train=FILE"),
        ("--data {held} --train {held} --target wage", "column 'wage': expected one of a, c, y"),
        ("--data none.csv --train {held}", "none.csv: no such file"),
        ("--data {held} --train {held} --n 3", "3 rows to judge: expected at least 30"),
    ],
)
def test_wrong_tables_on_the_command_line_are_one_line(options, message, tmp_path, capsys):
    from bfn.data.table_files import infer_columns
    from bfn.tables.training import table_model

    table_model(infer_columns(table(400)), width=8, n_blocks=1).save(tmp_path / "model")
    table(80).to_csv(tmp_path / "held.csv", index=False)
    options = [option.format(held=tmp_path / "held.csv") for option in options.split()]
    assert main(["evaluate", str(tmp_path / "model"), "--nfe", "1", *options]) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert re.search(message, line)
