"""Error messages of tables: one line that names the value, what was expected and what to do."""

from functools import partial

import pandas as pd
import pytest
import torch

from bfn.tables.synthesizer import TableSynthesizer
from messages import refused


def people(given=None, constraints=None, **settings):
    return lambda made: made["people"].sample(5, given, constraints=constraints, nfe=2, **settings)


def cities(n=3, **settings):
    return lambda made: made["cities"].sample(n, **settings)


def new(**settings):
    return lambda made: TableSynthesizer(**settings)


def identifiers(made, columns=("id", "x"), **settings):
    table = pd.DataFrame({"id": range(1, 101), "x": [i % 7 for i in range(100)]})
    TableSynthesizer(progress=False, steps=2, **settings).fit(table[list(columns)])


MESSAGES = [
    (people(["agee>40"]), "column 'agee': expected one of .*did you mean"),
    (people(["age"]), "'age': expected a condition such as"),
    (people(["age>99"]), "age > 99: no value of this column can meet it"),
    (people(["income>1e9"]), r"income > 1(e\+09|0{9}): no value .* the table has"),
    (people(["age=30", "age>40"]), "age = 30 and age > 40: no cell can meet both"),
    (people(["country of birth=DE"]), "'DE': expected one of FR, IT, NO"),
    (people(["country of birth>FR"]), "have no order"),
    (people(["member=maybe"]), "expected true or false"),
    (people(["born>yesterday-ish"]), "expected a time"),
    (people([3]), "a condition of type int"),
    (people(None, "start < stop"), "no column 'stop'"),
    (people(None, "start ** 2 < end"), "expected columns, numbers, texts and comparisons alone"),
    (people(None, "note < 3"), "constraint 'note < 3'"),
    (people(None, lambda table: 3 * table["age"]), "True or False for each"),
    (people(None, 3.5), "a constraint of type float: expected a text"),
    (people(None, "start > 2000000", tries=3), "0 of 10000 drawn rows met .*'start > 2000000'.*tries"),
    (people(None, "start > 0", tries=0), "tries=0: expected a whole number"),
    (lambda made: made["people"].sample_to("rows.xls", 5), r"files ending with \.csv"),
    (cities(given={"city": "Paris"}), "'Paris': expected one of Oslo, Rome, Bonn"),
    (cities(given={"visits": 10**6}), "beyond the table's range"),
    (cities(given={"city": None}), "no cell of this column was missing"),
    (cities(particles=torch.zeros(2)), "particles=tensor.*: expected a whole number"),
    (lambda made: made["cities"].impute(pd.DataFrame({"city": ["Rome"]})), "column 'warmth'"),
    (lambda made: TableSynthesizer().sample(3), "has seen no table"),
    (lambda made: TableSynthesizer().fit("none.csv"), "no such file"),
    (identifiers, "column 'id'"),
    (partial(identifiers, columns=["id"], drop_unlearnable=True), "column 'id'"),
    (new(seed=float("inf")), "seed=inf: expected a whole number"),
    (new(dropout=2), "dropout=2: expected a share from 0 to 1"),
    (new(lr=0), "lr=0: expected a positive number"),
    (new(network="mpl"), "network='mpl': expected one of mlp, transformer; did you mean 'mlp'"),
    (new(kinds="class"), "kinds of type str: expected kinds by column"),
]


@pytest.mark.parametrize(("act", "message"), MESSAGES)
def test_messages(act, message, of_people: TableSynthesizer, of_cities: TableSynthesizer) -> None:
    refused(message, act, {"people": of_people, "cities": of_cities})
