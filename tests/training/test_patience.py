"""Runs that end when the loss gets no better, and runs that keep their best model: alone, resumed and in sweeps."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_family_runs import assert_same_run, lines, models, stopping_at

from tdcd.config import ConfigError, check_config
from tdcd.core.ledger import Traffic
from tdcd.pages.report import write_report
from tdcd.pages.sweep import result_table, write_page
from tdcd.records.history import Record
from tdcd.records.outcome import Best, Stopping
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import resume, run
from tdcd.training.sweep.grid import expand
from tdcd.training.sweep.sweep import read_outcomes, run_sweep

KEYS = {
    "dtype": "float64",
    "data": {"source": "diabetes", "rows": 200},
    "federation": {"silos": 2, "clients": [3, 2]},
    "model": {"block": "linear", "l2": 0.01},
    # A step that is too large for so few rows: the held-out loss goes up and down.
    "train": {"rounds": 40, "local_steps": 3, "batch_size": 24, "step_size": 0.15},
    "evaluate": {"every": 2, "patience": 3, "keep": "best"},
}
ENDED = "stopped early after round 16: no better held-out loss in 3 evaluations; the model of round 10 is kept"


def config_of(train=(), **evaluate):
    return check_config(
        {**KEYS, "train": {**KEYS["train"], **dict(train)}, "evaluate": {**KEYS["evaluate"], **evaluate}}
    )


def record(round_index, train_loss, test_loss=None):
    nothing = Traffic(0, 0, 0)
    return Record(round_index, round_index, train_loss, test_loss, {}, nothing, nothing, 0.0)


def test_patience_counts_evaluations_since_the_lowest_loss():
    held_out = [record(r, 1.0, loss) for r, loss in enumerate([5.0, 3.0, 3.0, 4.0, 2.0, 2.0])]
    assert [Best.of(held_out[: n + 1]).since for n in range(6)] == [0, 0, 1, 2, 0, 1]
    two = Stopping(9, 2, "best")
    assert [two.is_complete(held_out[: n + 1]) for n in range(6)] == [False, False, False, True, False, False]
    assert two.kept(held_out).round == 4
    assert Stopping(9, 2).kept(held_out).round == 5
    training = [record(r, loss) for r, loss in enumerate([5.0, 3.0, 4.0])]
    assert Stopping(2, 1, "best").in_words(Best.of(training), 2) == (
        "the model of round 1, with the lowest training loss, is kept"
    )
    assert Stopping(9, 1).in_words(Best.of(training), 2) == (
        "stopped early after round 2: no better training loss in 1 evaluation; the model of round 2 is kept"
    )


def test_lines_without_a_held_out_loss_are_no_better_where_others_have_one():
    away = [record(0, 9.0), record(1, 8.0, 3.0), record(2, 1.0), record(3, 7.0, math.nan), record(4, 7.0, 2.5)]
    assert [(Best.of(away[: n + 1]).round, Best.of(away[: n + 1]).since) for n in range(5)] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (1, 2),
        (4, 0),
    ]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended") / "run"
    return run(config_of(), folder)


def test_a_run_ends_early_and_keeps_its_best_model(ended, tmp_path):
    """The model is the one that a run of just so many rounds ends with."""
    assert (ended.status, ended.round, ended.history[-1].round, ended.reason) == ("finished", 10, 16, ENDED)
    assert ended.final.test_loss == min(one.test_loss for one in ended.history)
    short = run(config_of({"rounds": 10}, keep="last"), tmp_path / "short")
    for silo, block in short.blocks.items():
        file = f"{silo}.safetensors"
        for other in (ended.blocks[silo], models(ended.folder)[file], models(short.folder)[file]):
            np.testing.assert_array_equal(block["weight"], other["weight"])
    # The last line of a run has a certificate, and what that took; so early, no other line has one.
    assert [record.gap is None for record in short.history] == [True] * 5 + [False]
    nothing = {"gap": None, "evaluation_bytes": None, "evaluation_messages": None}
    whole = [record.without_seconds() for record in short.history]
    assert lines(ended.folder)[:5] == whole[:5]
    same = [replace(records[5], **nothing).without_seconds() for records in (ended.history, short.history)]
    assert same[0] == same[1]
    page = write_report(ended.folder).read_text()
    assert f"{ENDED[:1].upper()}{ENDED[1:]}." in page
    assert "The global model after round 10." in page


def test_without_keep_the_last_model_stays(ended, tmp_path):
    last = run(config_of(keep="last"), tmp_path / "last")
    assert (last.round, last.reason) == (16, ENDED.replace("of round 10", "of round 16"))
    assert lines(last.folder) == lines(ended.folder)


def test_keep_best_without_patience(tmp_path):
    whole = run(config_of({"rounds": 16}, patience=None), tmp_path / "whole")
    assert (whole.round, whole.reason) == (10, "the model of round 10, with the lowest held-out loss, is kept")


@pytest.mark.parametrize(
    ("stop", "keys"), [(3, {}), (10, {}), (13, {}), (3, {"hub_optimizer": "momentum", "momentum": 0.3})]
)
def test_interrupted_and_resumed_is_the_uninterrupted_run_bit_for_bit(stop, keys, ended, tmp_path):
    config = config_of(keys)
    whole = run(config, tmp_path / "whole").folder if keys else ended.folder
    parts = run(config, tmp_path / "parts", **stopping_at(stop))
    assert (parts.status, parts.reason) == ("interrupted", "")
    resumed = resume(tmp_path / "parts", [])
    assert resumed.status == "finished"
    assert_same_run(whole, tmp_path / "parts")
    # What has ended early has ended, whatever rounds there are; resuming it changes nothing.
    again = resume(tmp_path / "parts", ["train.rounds=60"])
    assert (again.status, again.round, again.reason) == ("finished", resumed.round, resumed.reason)
    assert_same_run(whole, tmp_path / "parts")


def test_more_rounds_are_the_longer_run_unless_the_best_round_is_none_of_it(tmp_path):
    run(config_of({"rounds": 12}, patience=None), tmp_path / "parts")
    resume(tmp_path / "parts", ["train.rounds=18"])
    run(config_of({"rounds": 18}, patience=None), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    # Round 1 is the best that this run saw, and one of 8 rounds would not look at it.
    run(config_of({"rounds": 1}, every=4), tmp_path / "odd")
    again = resume(tmp_path / "odd", [])
    assert again.round == 1
    with pytest.raises(ConfigError, match="kept the model of round 1, and a run of so many rounds does not evaluate"):
        resume(tmp_path / "odd", ["train.rounds=8"])


def test_runs_of_a_batch_stop_by_themselves(ended, tmp_path):
    keys = {**KEYS, "seed": [0, 1, 2]}
    sweep = run_sweep(expand(keys), tmp_path / "sweep")
    assert {outcome.status for outcome in sweep.outcomes} == {"finished"}
    rounds = [outcome.history[-1].round for outcome in sweep.outcomes]
    assert len(set(rounds)) > 1
    for outcome in sweep.outcomes:
        alone = run(outcome.setting.config, tmp_path / outcome.setting.name)
        assert [one.round for one in alone.history] == [one.round for one in outcome.history]
        assert outcome.final.round == alone.round
        for name, tensors in models(tmp_path / "sweep" / outcome.setting.name).items():
            for key, tensor in tensors.items():
                np.testing.assert_allclose(tensor, models(alone.folder)[name][key], rtol=0, atol=1e-10)
    assert len(result_table(sweep).rows) == 3
    assert "Loss over rounds" in write_page(sweep).read_text()
    # All of it is found again, and nothing is run.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("*.safetensors")}
    again = run_sweep(expand(keys), tmp_path / "sweep")
    assert [one.status for one in read_outcomes(again.grid, again.folder).outcomes] == ["finished"] * 3
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("*.safetensors")}


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_run_that_diverges_keeps_its_best_model(tmp_path):
    found = run(config_of({"step_size": 40.0, "rounds": 400}, patience=400), tmp_path / "run")
    assert found.status == "diverged"
    assert found.round == Best.of(found.history).round
    assert next(RunFolder(found.folder).model.facts())[1]["round"] == found.round
