import pytest
import torch

from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.data.tokenizers import TokenList
from bfn.quality import metrics
from bfn.training.tuning import objectives
from bfn.training.tuning.objectives import FeatureDistance, MoleculeDivergence, NGramDivergence


def test_feature_distance_is_the_frechet_distance():
    generator = torch.Generator().manual_seed(0)
    real, drawn = torch.randn(200, 1, 2, 3, generator=generator), 2 + torch.randn(50, 1, 2, 3, generator=generator)
    objective = FeatureDistance(lambda x: x.flatten(1), real, ContinuousFlow())
    value = float(objective.loss(objective.summary(drawn)))
    assert value == pytest.approx(metrics.frechet_distance(drawn.flatten(1), real.flatten(1)), rel=1e-6)
    assert objective.least == 7


def test_feature_distance_reads_discrete_samples_by_their_likeliest_class():
    probs = torch.tensor([[[0.6, 0.4, 0.0], [0.1, 0.2, 0.7]]])
    objective = FeatureDistance(lambda x: x, torch.randn(9, 2), DiscreteFlow(3))
    assert objective.summary(probs).tolist() == [[-1.0, 1.0]]
    assert objective.method == "search"


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ngram_divergence_is_that_of_the_metrics(n, monkeypatch):
    monkeypatch.setattr(objectives, "PSEUDO_COUNT", 0.0)
    monkeypatch.setattr(objectives, "SMOOTHING", 0.0)
    generator = torch.Generator().manual_seed(0)
    real, drawn = (torch.randint(0, k, (30, 12), generator=generator) for k in (5, 4))
    objective = NGramDivergence(real, DiscreteFlow(5), n)
    value = float(objective.loss(objective.summary(torch.nn.functional.one_hot(drawn, 5).double())))
    counts = [metrics.ngram_counts(["".join(map(str, row)) for row in x.tolist()], n) for x in (drawn, real)]
    assert value == pytest.approx(metrics.jensen_shannon(*counts), abs=1e-9)


def test_strings_that_are_no_molecules_count_and_their_ngrams_do_not():
    pytest.importorskip("rdkit")
    real = ["CCOCC", "C1CCC1", "CCCCN", "OCCCO"]
    tokenizer = TokenList.from_texts(real, "smiles")

    def classes(*texts: str) -> torch.Tensor:
        rows = [tokenizer.encode(text) for text in texts]
        return torch.stack([torch.nn.functional.pad(row.long(), (0, 6 - len(row)), value=-1) for row in rows])

    flow = DiscreteFlow(len(tokenizer.pieces))
    objective, plain = MoleculeDivergence(classes(*real), flow, tokenizer), NGramDivergence(classes(*real), flow)
    drawn = classes("CCOCC", "CCCCN", "C1CCCN", "OCCCO")  # the third has an open ring
    expected = 0.25 + float(plain.loss(drawn[[0, 1, 3]]))
    assert float(objective.loss(drawn)) == pytest.approx(expected)
    assert float(objective.loss(classes("C1CCCN"))) == 2
    assert float(objective.loss(classes(*real))) == float(plain.loss(classes(*real)))


def test_many_classes_take_shorter_ngrams():
    assert NGramDivergence(torch.zeros(2, 8, dtype=torch.int64), DiscreteFlow(27)).n == 4
    assert NGramDivergence(torch.zeros(2, 8, dtype=torch.int64), DiscreteFlow(60)).n == 3
    assert NGramDivergence(torch.zeros(2, 8, dtype=torch.int64), DiscreteFlow(2000)).n == 1


def test_data_that_cannot_be_compared_with_are_refused():
    with pytest.raises(ValueError, match=r"data of shape \(5, 3\): expected texts of at least n=4 symbols"):
        NGramDivergence(torch.zeros(5, 3, dtype=torch.int64), DiscreteFlow(3))
    with pytest.raises(ValueError, match="expected texts of at least n=2"):
        NGramDivergence(torch.zeros(0, 8, dtype=torch.int64), DiscreteFlow(3), 2)
    for n in (0, 1):
        with pytest.raises(ValueError, match=f"{n} data: expected at least 2"):
            FeatureDistance(lambda x: x, torch.zeros(n, 2), ContinuousFlow())
