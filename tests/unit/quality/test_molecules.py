"""Molecules: counts that can be made by hand, distances that must be 0 or not, and the judge as a whole."""

import math

import pytest
import torch

from bfn.data.tokenizers import TokenList, smiles_problem
from bfn.quality import molecules as molecule_parts
from bfn.quality.frechet import FeatureStatistics
from bfn.quality.molecules import (
    ChemNetDistance,
    KnownMolecules,
    Molecules,
    MoleculeShares,
    chemnet_features,
    correlation_estimate,
    descriptor_distances,
    descriptors,
)

STRINGS = ["CCO", "OCC", "c1ccccc1", "C1=CC=CC=C1", "C1CC", "", "C(C)(C)(C)(C)C"]
"""Ethanol twice, benzene twice, an open ring, nothing, and a carbon with five bonds."""


def cut(text: str) -> list[str]:
    tokenizer = TokenList.from_texts([text, "CO"], "smiles")
    return [tokenizer.pieces[k] for k in tokenizer.encode(text).tolist()]


def test_valid_unique_and_new_are_counted_by_molecules_and_not_by_strings(capfd):
    molecules = Molecules.read(STRINGS)
    assert molecules.canonical == ("CCO", "CCO", "c1ccccc1", "c1ccccc1", None, None, None)
    assert molecules.unique == ("CCO", "c1ccccc1")
    assert molecules.validity().value == pytest.approx(4 / 7)
    assert molecules.uniqueness().value == pytest.approx(1 / 2)
    assert molecules.novelty(KnownMolecules.of(["CCO", "C"])).value == pytest.approx(1 / 2)
    for figure in (molecules.validity(), molecules.uniqueness()):
        assert 0 <= figure.low < figure.value < figure.high <= 1
    none = Molecules.read(["C1CC", "xyz"])
    assert none.validity().value == 0
    for figure in (none.uniqueness(), none.novelty(KnownMolecules.of(["C"]))):
        assert (figure.value, figure.low, figure.high) == (0, 0, 1)
    benzene = "[C][=C][C][=C][C][=C][Ring1][=Branch1]"
    assert Molecules.read(["[C][C][O]", benzene], "selfies").valid == ("CCO", "c1ccccc1")
    assert capfd.readouterr().err == ""  # RDKit says nothing of what it cannot read


def test_descriptors_are_those_of_the_molecule():
    logp, weight, qed, rings = descriptors(["c1ccccc1"])[0].tolist()
    assert (logp, weight, rings) == pytest.approx((1.69, 78.11, 1), abs=0.01)
    assert 0 < qed < 1


def test_distances_are_near_0_for_equal_distributions_and_the_shift_for_shifted_ones():
    generator = torch.Generator().manual_seed(0)
    real, same = (torch.randn(2000, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    near = descriptor_distances(same, real, generator=generator)
    far = descriptor_distances(same + torch.tensor([0.0, 0.5, 1.0, 2.0]), real, generator=generator)
    assert all(figure.value < 0.1 for figure in near)
    assert [figure.value for figure in far] == pytest.approx([0, 0.5, 1, 2], abs=0.1)
    assert all(figure.low <= figure.value <= figure.high for figure in far)


def test_chemnet_gives_the_features_that_its_package_gives():
    fcd = pytest.importorskip("fcd")
    smiles = ["CCO", "c1ccccc1", "CC(=O)N"]
    theirs = fcd.get_predictions(fcd.load_ref_model(), smiles, n_jobs=0)
    torch.testing.assert_close(chemnet_features(smiles), torch.from_numpy(theirs), atol=1e-5, rtol=1e-4)
    assert chemnet_features([]).shape == (0, 512)


def test_the_parts_judge_classes_with_padding():
    tokenizer = TokenList(("C", "N", "O", "("), "smiles")
    x = torch.tensor([[0, 0, 2], [0, 1, -1], [2, -1, -1], [0, 3, 0]])
    real = descriptors(["CCO", "CCN", "CO"])
    figures = MoleculeShares(tokenizer, KnownMolecules.of(["CCO"]), real)(x, None)
    assert figures["valid"].value == 3 / 4
    assert figures["unique"].value == 1
    assert figures["new"].value == pytest.approx(2 / 3)
    assert math.isfinite(figures["weight_distance"].value)
    part = ChemNetDistance(tokenizer, FeatureStatistics(100, torch.zeros(512), torch.eye(512, dtype=torch.float64)))
    assert math.isinf(part(x, None)["frechet"].value)  # too few are valid for a covariance
    assert "needs more than 512 valid samples" in part.problem(512)
    assert part.problem(513) is None


def test_those_described_are_from_all_over_the_data(monkeypatch):
    monkeypatch.setattr(molecule_parts, "MOST_DESCRIBED", 3)
    chains = ["C" * n for n in range(1, 9)]
    assert molecule_parts._evenly_spaced(chains) == ["C", "CCCC", "CCCCCCC"]
    assert molecule_parts._evenly_spaced(chains[:3]) == chains[:3]
    assert molecule_parts._evenly_spaced(()) == ()


def test_a_correlation_has_the_interval_of_fisher():
    generator = torch.Generator().manual_seed(1)
    a, noise = torch.randn(2, 4000, generator=generator, dtype=torch.float64)
    figure = correlation_estimate(a, 0.8 * a + 0.6 * noise)
    assert figure.value == pytest.approx(0.8, abs=0.02)
    assert figure.high - figure.low == pytest.approx(2 * 1.96 * (1 - 0.64) / 4000**0.5, rel=0.1)
    assert math.isnan(correlation_estimate(a[:3], noise[:3]).low)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("C1CC", "ring number 1, which comes an odd number of times"),
        ("CC(C", "1 '(' that are not closed"),
        ("CC)C", "')' at position 2 closes nothing"),
        ("C==C", "'=' at position 2, where an atom is expected"),
        ("CC=", "a bond '=' at its end that leads nowhere"),
        ("Cxy", "'x' at position 1 is no atom outside brackets"),
        ("1CC", "ring number 1 at position 0 without an atom before it"),
    ],
)
def test_what_cannot_be_smiles_is_told_with_its_place(text, problem):
    assert smiles_problem(cut(text)) == problem


def test_what_rdkit_reads_is_never_refused():
    for text in ("CCO", "c1ccccc1", "C/C=C\\C", "[Na+].[Cl-]", "N[C@@H](C)C(=O)O", "C%12CC%12", "C1CC=1", "C(C)1CC1",
                 "O=N(=O)C1=CC=CN1", "[2H]C([2H])[2H]", "*C", "C12CC1C2", "F[Si](F)(F)F", "BrC#CI"):  # fmt: skip
        assert smiles_problem(cut(text)) is None, text
        assert Molecules.read([text]).valid or text == "*C"
