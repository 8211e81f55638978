"""The bundled model of molecules: what it is, that it draws molecules, that it does what it is asked for."""

import bfn
from bfn.quality import Molecules, report_molecules
from bfn.storage import models as storage


def test_it_is_small_and_its_card_says_what_it_is():
    folder = storage.locate("qm9")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8_000_000
    info = storage.read_info("qm9")
    assert info.trained_on["name"] == "qm9"
    assert info.text_tokenizer.notation == "smiles"
    assert info.lengths.longest == 22
    assert info.conditions["gap"].low < 0.1 < 0.5 < info.conditions["gap"].high
    assert info.card["measured"]
    assert info.card["note"]


def test_ten_calls_draw_molecules_that_differ():
    model = bfn.load("qm9")
    out = model.sample(200, nfe=10, seed=3)
    molecules = Molecules.read(model.decode(out.x, out.present))
    # The card has 77 % of a thousand: under 60 % of 200 then has a probability below 1 in 100,000.
    assert molecules.validity().value > 0.6
    assert molecules.uniqueness().value > 0.95


def test_the_gap_that_is_asked_for_is_the_gap_that_comes():
    model = bfn.load("qm9")
    found = {}
    for asked in (0.18, 0.32):
        out = model.sample(60, nfe=10, condition={"gap": asked}, guidance=2.0, seed=0)
        (gap,) = report_molecules(model, out.x, out.present, out.conditions).properties
        found[asked] = sum(gap.estimated) / len(gap.estimated)
    assert abs(found[0.18] - 0.18) < 0.03
    assert abs(found[0.32] - 0.32) < 0.03
