"""The second judge: other features, other text, and figures that tell good samples from bad ones."""

import torch

import bfn
from bfn import data
from bfn.quality.judge_choice import judge_for
from bfn_lab.second_judge import NGramBits, Projections, judge_features


def test_digits_are_recognised_and_other_images_get_a_fixed_random_network():
    images = data.load("digits", "test")
    network, first, second = (judge_features(name, (1, 8, 8)) for name in ("digits", "photographs", "others"))
    with torch.no_grad():
        right = (network(images.to_float()).argmax(-1) == images.labels).float().mean()
    assert right > 0.9
    assert torch.equal(first.head.weight, second.head.weight)


def test_real_digits_are_nearer_than_spoilt_ones():
    model = bfn.load("digits")
    judge = judge_for(model, "second")
    images = judge.held_out
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    real, spoilt = (judge(x)["frechet"] for x in (images, (images + 0.4 * noise).clamp(-1, 1)))
    assert real.high < spoilt.low


def test_bits_of_a_chain_are_its_entropy_and_dull_text_costs_less():
    generator = torch.Generator().manual_seed(0)
    chain = torch.randint(2, (200_000,), generator=generator)
    part = NGramBits.of(chain, 4)
    fair = part(torch.randint(2, (100, 64), generator=generator), None)["ngram_bits"]
    assert fair.low - 0.01 < 1.0 < fair.high + 0.01
    wrong = part(torch.randint(4, (100, 64), generator=generator), None)["ngram_bits"]
    assert wrong.low > 2
    assert part.measures[0].better == "real"


def test_texts_of_their_own_lengths_cost_the_bits_of_their_symbols_and_of_their_ends():
    """Fair bits, and a text ends with probability 1/2 after each: two bits a symbol, but for the end, of one bit."""
    generator = torch.Generator().manual_seed(0)

    def texts(n: int, ends: float) -> torch.Tensor:
        lengths = 1 + (torch.rand(n, 40, generator=generator) < ends).long().argmax(1)
        bits = torch.randint(2, (n, 40), generator=generator)
        return bits.masked_fill(torch.arange(40) >= lengths.unsqueeze(1), -1)

    part = NGramBits.of(texts(50_000, 0.5), 2)
    again = texts(2000, 0.5)
    found = part(again, None)["ngram_bits"]
    # The first symbol has one bit, the others two (a symbol, and that there is one), the end one.
    lengths = (again >= 0).sum(1)
    expected = (2 * lengths / (lengths + 1)).mean()
    assert found.low - 0.01 < expected < found.high + 0.01
    # Neither how far a batch is padded, nor what was drawn beside a text, changes what it costs.
    wider = torch.nn.functional.pad(again, (0, 5), value=-1)
    assert part(wider, None)["ngram_bits"] == found
    # Texts that never end are not what was asked for, though their symbols are right.
    assert part(torch.randint(2, (2000, 40), generator=generator), None)["ngram_bits"].low > found.high


def test_projections_see_a_shift_and_a_spread():
    x = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    judge = Projections(x[::2])
    same, moved, wide = (judge(y, None)["sliced_distance"] for y in (x[1::2], x[1::2] + 0.3, 1.5 * x[1::2]))
    assert same.high < min(moved.low, wide.low)
