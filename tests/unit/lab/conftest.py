"""Models small enough to run an experiment on in a second, with their judges."""

from dataclasses import replace

import pytest
import torch

import tiny
from bfn.exact.strings import MarkovChain
from bfn.quality.judge_choice import Frechet, judge_for
from bfn_lab.measuring import JudgedModel

SENTENCES = " the cat sat on the mat and the dog ran to the old house by the sea where she had been "


@pytest.fixture(scope="session")
def text_model() -> JudgedModel:
    """An untrained text model of 20 symbols, judged against a sentence."""
    model = tiny.build("text")
    symbols = [tiny.ALPHABET.index(c) for c in SENTENCES * 8]
    real = torch.tensor(symbols).unfold(0, 20, 7).contiguous()
    return JudgedModel("tiny-text", "a tiny text model", model, judge_for(model, "text", real), n=6, batch=6)


@pytest.fixture(scope="session")
def chain_model() -> JudgedModel:
    """An exact model of text: a Markov chain over 27 symbols."""
    generator = torch.Generator().manual_seed(0)
    transition = torch.rand(27, 27, generator=generator, dtype=torch.float64).pow(4)
    model = MarkovChain(torch.full((27,), 1 / 27), transition / transition.sum(1, keepdim=True), 20)
    model.info.alphabet = tiny.ALPHABET
    judge = judge_for(model, "text", model.sample_data(40, generator))
    judge = replace(judge, parts=tuple(replace(part, english=True) for part in judge.parts))  # looked up all the same
    return JudgedModel("chain", "a Markov chain", model, judge, n=6, batch=6, identity="chain-of-the-tests")


@pytest.fixture(scope="session")
def image_model() -> JudgedModel:
    """An untrained class-conditional image model, judged against noise."""
    model = tiny.build("images")
    real = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    judge = judge_for(model, "pixels", real)
    quick = tuple(replace(part, n_resamples=5) if isinstance(part, Frechet) else part for part in judge.parts)
    return JudgedModel("tiny-images", "a tiny image model", model, replace(judge, parts=quick), n=70, batch=70)
