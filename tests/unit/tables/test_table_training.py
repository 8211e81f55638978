"""Which weights a table's training keeps, and when it ends."""

import pandas as pd
import pytest
import torch

from bfn import TableSynthesizer
from bfn.data import infer_columns
from bfn.errors import UserError
from bfn.tables.training import PATIENCE, TOLERANCE, Levels, TableTraining, table_model


def training(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> TableTraining:
    """A run whose held-out loss is scripted, a look each step; both parts of a look are the same."""
    rows = pd.DataFrame({"x": torch.linspace(0, 1, 200).tolist(), "y": ["a", "b"] * 100})
    columns = infer_columns(rows)
    model = table_model(columns, width=8, n_blocks=1)
    made = TableTraining(model, model.as_data(columns.encode(rows)).to(model.dtype), len(losses), 16, 1e-3, 0)
    made.every = 1
    whole = Levels.loss

    def scripted(self, model, x, known, generator):
        held_out = self is made.held_out_levels
        return torch.tensor(losses[made.step - 1]) if held_out else whole(self, model, x, known, generator)

    monkeypatch.setattr(Levels, "loss", scripted)
    return made


def test_the_newest_weights_near_the_least_loss_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(monkeypatch, [2.0, 1.0, 1.0 + 0.9 * (TOLERANCE - 1), 1.0 + 2 * (TOLERANCE - 1)])
    kept = []
    while not run.is_done:
        run.train_step()
        kept.append(run.kept_step)
    assert kept == [1, 2, 3, 3]
    assert run.kept_loss == pytest.approx(1.0 + 0.9 * (TOLERANCE - 1))
    third = run.kept.state_dict()
    assert any(not torch.equal(value, third[name]) for name, value in run.averaged.state_dict().items())


def test_it_ends_where_none_were_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(monkeypatch, [1.0] + 100 * [1.5])
    while not run.is_done:
        run.train_step()
    assert (run.step, run.kept_step) == (1 + PATIENCE, 1)


def test_columns_that_cannot_be_learned_are_left_out_where_that_is_asked_for(capsys: pytest.CaptureFixture) -> None:
    table = pd.DataFrame({"id": range(1, 101), "x": [i % 7 for i in range(100)], "y": ["a", "b"] * 50})
    settings = {"steps": 2, "batch": 32, "width": 8, "n_blocks": 1}
    with pytest.raises(UserError, match="column 'id'"):
        TableSynthesizer(**settings, progress=False).fit(table)
    synthesizer = TableSynthesizer(**settings, drop_unlearnable=True).fit(table)
    assert list(synthesizer.left_out) == ["id"]
    assert "left out: column 'id'" in capsys.readouterr().out
    assert list(synthesizer.sample(3)) == ["x", "y"]
    with pytest.raises(UserError, match="column 'id'"):
        TableSynthesizer(**settings, drop_unlearnable=True, progress=False).fit(table[["id"]])
