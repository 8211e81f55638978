"""The bundled model and judge of QM9: gaps that are asked for, estimates, known molecules, and storage."""

import pytest
import torch

import bfn
from bfn.quality.molecules import MoleculeJudge, Molecules, correlation_estimate, molecule_judge, report_molecules
from tiny import build

GAPS = {
    "CCC1CC(C)C1C#C": 0.3023, "N=COC1CC2OCC12": 0.2652, "CCC1CC1C(O)CO": 0.3159, "CCOC1(C)CC1OC": 0.3174,
    "CN1CC1(C)C(O)C#N": 0.2828, "NC1=C(OC=C1)C#N": 0.1915, "N#CC1C2CC3OC2C13": 0.2834, "N=C1C=NOC(=C1)C#C": 0.1742,
    "OC12CC(OCC1)C=C2": 0.2479, "CC1(NC1C1CO1)C#N": 0.2791, "NC(=O)C12C3C4C1N4C23": 0.2371, "CCCCC1CN=CO1": 0.2714,
    "CCC1(CC)CC2CC12": 0.3293, "NC1=NC2C(CO)C2O1": 0.2674, "C1CC2(C1)C1C3C2CN13": 0.3133, "NC(=O)NC1=NNC=N1": 0.2372,
    "CC1(C)COC(C1)C#N": 0.2935, "O=CC(=O)C12CC(C1)C2": 0.1482, "CC1OC(=N)C2C1N2C": 0.2548, "CCC1(CCO)CN1C": 0.3072,
}  # fmt: skip
"""Molecules of QM9 in hartrees, chosen at random."""


@pytest.fixture(scope="module")
def judge() -> MoleculeJudge:
    found = molecule_judge("qm9")
    assert found is not None
    return found


@pytest.mark.parametrize("asked", [0.18, 0.32])
def test_the_bundled_model_draws_molecules_with_the_gap_that_is_asked_for(asked):
    model = bfn.load("qm9")
    out = model.sample(60, nfe=10, condition={"gap": asked}, guidance=2.0, seed=0)
    report = report_molecules(model, out.x, out.present, out.conditions)
    (gap,) = report.properties
    assert sum(gap.estimated) / len(gap.estimated) == pytest.approx(asked, abs=0.03)
    # The card has 77 % of a thousand: half of 60 then has a probability below 1 in 100,000.
    assert report.molecules.validity().value > 0.5
    assert report.molecules.uniqueness().value > 0.9


def test_its_estimates_are_near_what_was_calculated(judge):
    estimated = judge.estimate("gap", Molecules.read(GAPS).valid)
    error = estimated - torch.tensor(list(GAPS.values()))
    assert error.abs().mean() < 0.02
    assert correlation_estimate(estimated, torch.tensor(list(GAPS.values()))).value > 0.9
    assert float(judge.metadata["gap R2"]) > 0.9


def test_it_knows_the_molecules_of_the_training_part_and_not_others(judge):
    assert 117_000 < len(judge.known) < 118_000
    # Nine in ten are in the training part: fewer than 14 of 20 has a probability of 1 in 400.
    assert sum(judge.known.contain(Molecules.read(GAPS).valid)) >= 14
    assert not any(judge.known.contain(["CCCCCCCCCCCCCCCCCO", "c1ccc2ccccc2c1", "ClC(Cl)Cl"]))


def test_of_other_sets_there_is_no_such_judge():
    for name in ("mnist", "digits", "no-such-set", "../judges/qm9", None, 3):
        assert molecule_judge(name) is None


def test_a_report_says_what_was_asked_for_and_what_is_estimated():
    model = build("molecules")
    out = model.sample(40, nfe=2, condition={"gap": 0.25}, seed=0)
    report = report_molecules(model, out.x, out.present, out.conditions)
    counts, gap = report.lines()
    assert f"{len(report.molecules.valid)} of 40 are molecules" in counts
    assert f"{report.n_new} of these not among the 117," in counts
    assert gap.startswith("gap: asked 0.25, estimated 0.")
    assert "the estimate itself is off by 0.00" in gap
    any_gap = report_molecules(model, out.x, out.present, {}).lines()[1]
    assert any_gap.startswith("gap: estimated")
    spread = report_molecules(model, out.x, out.present, {"gap": torch.linspace(0.1, 0.4, 40)}).lines()[1]
    assert "correlation" in spread
