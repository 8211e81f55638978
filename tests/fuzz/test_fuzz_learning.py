"""Fuzz tests of learning: fits, distillation, tables, tokenizers, joint data, conditions."""

import math
from functools import cache

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

import bfn
import tiny
from bfn import networks
from bfn.core.losses import WEIGHTINGS
from bfn.data.tokenizers import TEXT8, Alphabet, TokenList
from bfn.exact.joint import JointMixture
from bfn.quality import metrics
from fuzzing import ODD, allowed, assert_finite, calls, cases, run, values

DATA = {"vectors": torch.linspace(-1, 1, 12).view(6, 2), "text": torch.arange(120).view(6, 20) % 27}
FITTING = calls(
    steps=values(1, 2, 2), batch=values(None, 2, 4), lr=values(1e-3, 1e-2), weighting=values(None, *WEIGHTINGS),
    label=values(None), condition=values(None, {}), present=values(None, torch.ones(6, 20, dtype=torch.bool)),
    dropout=values(0.0, 0.1), ema=values(0.9, 0.0), warmup=values(0, 1), grad_clip=values(1.0, 0.0),
    weight_decay=values(0.0, 0.1), seed=values(0, 1),
)  # fmt: skip


@cases(12, 400)
def test_fits(n):
    def check(kind, data, options):
        with allowed():
            x = DATA[kind] if isinstance(data, str) and data == "data" else data
            model = bfn.fit(tiny.build(kind), x, progress=False, **{"steps": 1, **options})
            assert_finite(dict(model.named_parameters()))

    data = values("data", "data", DATA["vectors"].numpy(), {"x": DATA["vectors"]}, pd.DataFrame({"a": [1.0, 2.0]}))
    run(n, check, kind=st.sampled_from(sorted(DATA)), data=data, options=FITTING)


@cases(4, 60)
def test_distillation(n):
    def check(options):
        with allowed():
            student = bfn.distill(tiny.build("vectors"), **{"steps": 1, "paths": 4, "batch": 2, **options})
            assert_finite(student.sample(1, nfe=1, seed=0).x)

    options = calls(
        steps=values(1, 2), paths=values(4, 8), batch=values(2, 4), calls=values(1, 2), lr=values(1e-3), seed=values(0),
        teacher=values(None, {"nfe": 2}, {"solver": "fast-ode", "nfe": 3}, {"nfe": 2.5}, {"solver": 3}),
        student=values(None), match=values(None, 0.5),
    )  # fmt: skip
    run(n, check, options=options)


def frame(chance, n: int) -> pd.DataFrame:
    """A table of columns of any kind."""
    columns = {
        "number": [chance.choice((0.1, 2.5, -3.0, 1e300, 1e-300, float("nan"), None)) for _ in range(n)],
        "whole": [chance.choice((1, 2, 3, 2**40)) for _ in range(n)],
        "same": [7] * n,
        "name": [chance.choice(("a", "b", "", None, "\x1b[31m", "NA")) for _ in range(n)],
        "flag": [chance.choice((True, False)) for _ in range(n)],
        "day": pd.to_datetime([chance.choice(("2020-01-01", "1900-05-05", None)) for _ in range(n)]),
        "empty": [None] * n,
        "mixed": [chance.choice((1, "x", 2.5, None)) for _ in range(n)],
        "odd": [chance.choice(ODD) for _ in range(n)],
        "infinite": [chance.choice((float("inf"), -1.0)) for _ in range(n)],
    }
    names = chance.sample(sorted(columns), chance.randrange(1, 5))
    return pd.DataFrame({name: columns[name] for name in names})


@cases(6, 150)
def test_tables_are_learned(n):
    def check(chance, rows, options):
        with allowed():
            settings = {"steps": 1, "batch": 4, "width": 8, "n_blocks": 1, **options}
            made = bfn.TableSynthesizer(**settings).fit(frame(chance, rows))
            assert len(made.sample(2, nfe=2)) == 2

    options = calls(
        steps=values(1, 2), batch=values(4), width=values(8), n_blocks=values(1), dropout=values(None, 0.1),
        lr=values(1e-3), seed=values(0), kinds=values(None, {"whole": "class"}), drop=values((), ("whole",)),
    )  # fmt: skip
    run(n, check, chance=st.randoms(use_true_random=False), rows=st.sampled_from((0, 1, 12, 12)), options=options)


@cache
def people() -> bfn.TableSynthesizer:
    """A small table, learned."""
    table = pd.DataFrame({"age": [20.0, 30.0, 40.0] * 8, "from": ["FR", "DE", "FR"] * 8, "n": [1, 2, 3] * 8})
    return bfn.TableSynthesizer(steps=2, batch=8, width=8, n_blocks=1).fit(table)


GIVEN = (
    {"from": "FR"}, {"from": "XX"}, {"age": 30}, {"age": 1e300}, {"nothing": 1}, {"from": None}, {"from": ["FR", "DE"]},
    ["age>25"], ["age>1e400"], ["from=FR", "n<3"], ["from"], ["="], ["age>"], [">3"], ["age>25>3"], "age>25",
)  # fmt: skip
RULES = ("age <= n", "age + n == age", "age <", "import os", "a <= b", "__class__ == age", "age <= 1e400", "(" * 200)


@cases(12, 600)
def test_rows_that_meet_conditions(n):
    def check(count, options, table):
        with allowed():
            rows = people().sample(count, **{"nfe": 2, "tries": 2, **options})
            assert not rows["age"].isna().any()
        with allowed():
            people().impute(table, nfe=2)
        with allowed():
            people().log_likelihood(table, nfe=3)

    options = calls(
        given=values(None, *GIVEN), constraints=values(None, *RULES, [RULES[0]], lambda rows: rows["age"] > 0),
        nfe=values(2, 3), seed=values(0), tries=values(1, 3), particles=values(None, 2),
    )  # fmt: skip
    tables = values(
        pd.DataFrame({"age": [None, 20.0], "from": ["FR", None], "n": [1, 2]}), pd.DataFrame({"age": [1.0]}),
        pd.DataFrame({"age": ["x"], "from": [3], "n": [None]}), pd.DataFrame(), {"age": [1.0]},
    )  # fmt: skip
    run(n, check, count=values(1, 2, 3), options=options, table=tables)


@cases(100, 1500)
def test_tokenizers(n):
    some = st.text(st.characters(codec="utf-8"), max_size=12)
    made = st.one_of(
        st.just(TEXT8), st.just(TokenList(("C", "Cl", "c1", "[nH]"))), some.map(lambda text: (Alphabet, text)),
        st.lists(some, max_size=5).map(lambda pieces: (TokenList, tuple(pieces))),
        values("x").map(lambda v: (Alphabet, v)), values(("a", "b")).map(lambda v: (TokenList, v)),
    )  # fmt: skip

    def check(tokenizer, text, length, unknown):
        with allowed():
            made = tokenizer[0](tokenizer[1]) if isinstance(tokenizer, tuple) else tokenizer
            with allowed():
                assert made.decode(made.encode(text)) == [text]
            with allowed():
                made.encode_prompt(text, length, unknown)

    texts = st.one_of(some, st.text("abc _Cl1[nH]", max_size=12), values("a_c"))
    run(n, check, tokenizer=made, text=texts, length=values(4, 12), unknown=values("_", "_", "?"))


@cache
def joint() -> JointMixture:
    """Numbers and classes side by side."""
    return JointMixture(
        {"x": (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.full((2, 2), 0.2))},
        {"kind": torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]])},
    )


PARTS = {"x": torch.zeros(2, 2), "kind": torch.zeros(2, 1, dtype=torch.int64)}
MASKS = {"x": torch.ones(2, 2, dtype=torch.bool), "kind": torch.zeros(2, 1, dtype=torch.bool)}


@cases(40, 1500)
def test_joint_data(n):
    def check(options, loss):
        with allowed():
            assert_finite(joint().sample(2, **{"nfe": 2, "seed": 0, **options}).x)
        with allowed():
            assert_finite(joint().loss(**{"x": PARTS, **loss}))

    options = calls(
        solver=values("auto", "bfn", "fast-ode"), nfe=values(2, 3), t_start=values(None, 0.1), clip=values(None),
        known=values(PARTS, {"x": PARTS["x"]}, {"y": PARTS["x"]}, {"x": 3}), seed=values(0),
        known_mask=values(MASKS, {"x": MASKS["x"]}, {"kind": MASKS["x"]}), temperature=values(1.0, {"kind": 0.5}),
        allowed=values(None, {"kind": torch.tensor([True, False])}, {"x": torch.tensor([True])}), initial=values(PARTS),
    )  # fmt: skip
    loss = calls(
        x=values(PARTS, {"x": PARTS["x"]}, {**PARTS, "kind": torch.full((2, 1), 9)}, {"x": [[0.0, 1]], "kind": [[0]]}),
        t=values(None, torch.tensor([0.2, 0.9])), n_steps=values(None, 3), weighting=values(None, *WEIGHTINGS),
    )  # fmt: skip
    run(n, check, options=options, loss=loss)


@cache
def conditioned() -> bfn.BFN:
    """A network with a label, numbers and a sequence beside its state."""
    conditions = {"size": {"shape": [2]}}
    network = networks.build({"name": "mlp", "in_features": 2, "width": 8, "n_labels": 3, "conditions": conditions})
    info = bfn.ModelInfo(
        classes=bfn.Classes.equal(3), conditions={"size": bfn.Condition.of(torch.linspace(0, 1, 20).view(10, 2))}
    )
    return bfn.BFN(network, bfn.ContinuousFlow(), "data", (2,), info)


@cases(40, 1000)
def test_conditions(n):
    def check(options):
        with allowed():
            assert_finite(conditioned().sample(2, nfe=2, seed=0, **options).x)

    options = calls(
        condition=values(None, {"size": [0.1, 0.2]}, {"size": torch.zeros(2, 2)}, {"size": [[1, 2], [3, 4]]},
                         {"size": 3}, {"size": "x"}, {"colour": 1}, {"size": [math.nan, 0.0]}, {"size": [1e300, 0]}),
        label=values(None, 1, [0, 2], ["1", 2]), guidance=values(None, 1.5, {"size": 2.0}, {"label": 1, "size": 0.0}),
    )  # fmt: skip
    run(n, check, options=options)


@cases(60, 1000)
def test_metrics(n):
    some = values(
        torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.ones(8, 2), torch.zeros(1, 2),
        torch.zeros(8, 2, dtype=torch.int64), np.ones((8, 2)), ["the cat", "dgo"], "the cat", "", [""], ["a" * 50],
    )  # fmt: skip

    def check(measure, given, settings):
        with allowed():
            result = measure(*given, **settings)
            assert_finite(torch.as_tensor(result) if isinstance(result, float) else result)

    run(
        n, check,
        measure=st.sampled_from([getattr(metrics, name) for name in metrics.__all__]),
        given=st.lists(some, min_size=1, max_size=2), settings=st.sampled_from(({}, {}, {"n": 2}, {"n": 0})),
    )  # fmt: skip
