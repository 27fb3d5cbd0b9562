"""Sweeps on disk: what one by one gives, resumed, with diverging members, and what is shown of them."""

import json
import shutil

import numpy as np
import pytest

from tdcd.config import check_config
from tdcd.core.execution import Interrupted
from tdcd.pages.sweep import MOST_CURVES, result_table, write_page
from tdcd.records.history import read_history
from tdcd.training.run import finish
from tdcd.training.sweep.grid import expand
from tdcd.training.sweep.runner import plan_alike, planned
from tdcd.training.sweep.sweep import read_grid, read_outcomes, run_sweep

KEYS = {
    "dtype": "float64",
    "seed": [0, 1],
    "data": {"source": "diabetes"},
    "federation": {"clients": 3},
    "model": {"block": "linear", "l2": [0.0, 0.1]},
    "train": {"rounds": 12, "batch_size": 32, "local_steps": [2, 4], "step_size": 0.05},
    "evaluate": {"every": 4},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    steps = []
    sweep = run_sweep(expand(KEYS), tmp_path_factory.mktemp("sweep") / "s", observe=steps.append)
    return sweep, steps


def losses(sweep):
    return {outcome.setting.name: [record.train_loss for record in outcome.history] for outcome in sweep.outcomes}


def test_a_sweep_gives_what_its_runs_give_one_by_one(done, tmp_path):
    sweep, _ = done
    assert len(sweep.outcomes) == 8
    for outcome in sweep.outcomes:
        config = outcome.setting.config
        alone = finish(planned(config), tmp_path / outcome.setting.name)
        assert [record.round for record in outcome.history] == [record.round for record in alone] == [0, 4, 8, 12]
        for own, other in zip(outcome.history, alone, strict=True):
            assert (own.iteration, own.bytes, own.messages) == (other.iteration, other.bytes, other.messages)
            assert own.train_loss == pytest.approx(other.train_loss, rel=1e-10)
            assert own.test_loss == pytest.approx(other.test_loss, rel=1e-10)
            assert own.metrics["test"] == pytest.approx(other.metrics["test"], rel=1e-9)
        for name in ("config.toml", "federation.json"):
            here, there = sweep.folder / outcome.setting.name / name, tmp_path / outcome.setting.name / name
            assert here.read_bytes() == there.read_bytes()
        assert (sweep.folder / outcome.setting.name / "model" / "silo1.safetensors").exists()


def test_settings_of_the_same_shapes_run_together(done):
    _, steps = done
    assert {step.running for step in steps} == {4}
    assert len({step.label for step in steps}) == 2
    assert steps[-1].done == 8
    assert steps[-1].progress.round == 12
    assert [step.done for step in steps] == sorted(step.done for step in steps)


def test_a_finished_sweep_runs_nothing_again(done):
    sweep, _ = done
    again = run_sweep(
        read_grid(sweep.folder), sweep.folder, observe=lambda step: pytest.fail(f"{step.label} ran again")
    )
    assert losses(again) == losses(sweep)


def interrupt(folder):
    """Run the sweep until some of it is two thirds done."""
    steps = []
    with pytest.raises(Interrupted):
        run_sweep(
            expand(KEYS),
            folder,
            observe=steps.append,
            should_stop=lambda: any(step.progress.round >= 8 for step in steps),
        )


def test_an_interrupted_sweep_continues_and_gives_the_same(done, tmp_path):
    sweep, _ = done
    interrupt(tmp_path)
    halfway = read_outcomes(read_grid(tmp_path), tmp_path)
    assert "unfinished" in {outcome.status for outcome in halfway.outcomes}
    assert 3 in {len(outcome.history) for outcome in halfway.outcomes}
    assert losses(run_sweep(read_grid(tmp_path), tmp_path)) == losses(sweep)


def test_runs_that_a_crash_left_at_different_rounds_continue(done, tmp_path):
    sweep, _ = done
    interrupt(tmp_path)
    begun = [o.setting.name for o in read_outcomes(expand(KEYS), tmp_path).outcomes if len(o.history) == 3]
    shutil.rmtree(tmp_path / begun[0] / "model")
    (tmp_path / begun[1] / "history.jsonl").write_text("")
    torn = tmp_path / begun[2] / "history.jsonl"
    torn.write_text(torn.read_text()[:-40])
    found = losses(run_sweep(expand(KEYS), tmp_path))
    for setting, expected in losses(sweep).items():
        np.testing.assert_allclose(found[setting], expected, rtol=1e-10)


def test_more_values_add_runs(done, tmp_path):
    sweep, _ = done
    shutil.copytree(sweep.folder, tmp_path / "s")
    steps = []
    more = run_sweep(expand(KEYS | {"seed": [0, 1, 2]}), tmp_path / "s", observe=steps.append)
    assert {step.running for step in steps} == {2}
    assert len(more.outcomes) == 12
    assert losses(sweep).items() <= losses(more).items()


def test_runs_of_other_settings_are_refused(done):
    sweep, _ = done
    changed = KEYS | {"train": KEYS["train"] | {"rounds": 8}}
    with pytest.raises(FileExistsError, match="holds a run of other settings: remove it, or choose another --out"):
        run_sweep(expand(changed), sweep.folder)
    assert run_sweep(expand(KEYS), sweep.folder).best == sweep.best


def test_a_member_that_diverges_leaves_the_others_alone(tmp_path):
    keys = KEYS | {"seed": 0, "train": KEYS["train"] | {"step_size": [0.05, 1e300], "local_steps": 2}}
    sweep = run_sweep(expand(keys | {"model": {"block": "linear"}}), tmp_path)
    fine, wild = sweep.outcomes
    assert (fine.status, wild.status) == ("finished", "diverged")
    assert [record.round for record in wild.history] == [0, 4]
    assert wild.final is not None
    assert wild.final.round == 0
    assert (tmp_path / wild.setting.name / "model" / "silo1.safetensors").exists()
    alone = finish(planned(fine.setting.config), tmp_path / "alone")
    assert fine.history[-1].train_loss == pytest.approx(alone[-1].train_loss, rel=1e-10)
    assert sweep.best == 0
    assert result_table(sweep).rows[1][:2] == ["1e+300", "diverged"]


def test_the_table_and_sweep_json_have_the_final_figures(done):
    sweep, _ = done
    head, rows = result_table(sweep)
    assert head == [
        "seed", "l2", "local_steps", "train loss", "held-out loss", "held-out RMSE", "held-out R²", "sent", "time",
    ]  # fmt: skip
    assert [row[:3] for row in rows][:3] == [["0", "0.0", "2"], ["0", "0.0", "4"], ["0", "0.1", "2"]]
    written = json.loads((sweep.folder / "sweep.json").read_text())
    assert written["keys"] == KEYS
    assert written["varied"] == ["seed", "model.l2", "train.local_steps"]
    for run, row in zip(written["runs"], rows, strict=True):
        last = read_history(sweep.folder / run["folder"] / "history.jsonl")[-1]
        assert (run["train_loss"], run["test_loss"]) == (last.train_loss, last.test_loss)
        assert (run["bytes"], run["status"]) == (last.bytes.total, "finished")
        assert row[3] == f"{last.train_loss:#.4g}"
    lowest = min(range(8), key=lambda place: written["runs"][place]["test_loss"])
    assert sweep.best == lowest


def test_the_page_averages_over_seeds_and_draws_the_best(done):
    sweep, _ = done
    page = write_page(sweep).read_text()
    assert page.count("<svg") == 4
    assert "l2 = 0.0, local_steps = 2" in page
    assert "seed = " not in page
    assert "bands one standard deviation" in page
    assert "8 settings · 8 finished" in page


def test_the_page_of_many_settings_says_what_it_leaves_out(tmp_path):
    sizes = [0.01 * (1 + number) for number in range(MOST_CURVES + 2)]
    keys = KEYS | {
        "seed": 0,
        "model": {"block": "linear"},
        "train": {"rounds": 4, "batch_size": 32, "step_size": sizes},
    }
    page = write_page(run_sweep(expand(keys), tmp_path)).read_text()
    assert f"Only the {MOST_CURVES} with the lowest final loss of {MOST_CURVES + 2} are drawn." in page


def test_a_damaged_sweep_file_is_named(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match=r"sweep\.json is damaged: KeyError\('keys'\)"):
        read_grid(tmp_path)


def test_runs_with_more_to_do_at_the_end_are_not_batched(tmp_path):
    """Each of them trains every silo alone, too."""
    keys = KEYS | {"model": {"block": "linear"}, "evaluate": {"every": 4, "alone": True}}
    keys["train"] = KEYS["train"] | {"local_steps": 2}
    sweep = run_sweep(expand(keys), tmp_path)
    assert all((tmp_path / outcome.setting.name / "alone.json").exists() for outcome in sweep.outcomes)


def test_a_baseline_is_finished_after_its_own_rounds(tmp_path):
    keys = KEYS | {"seed": 0, "model": {"block": "linear"}}
    keys["train"] = KEYS["train"] | {"local_steps": 2, "algorithm": ["tdcd", "distributed-sgd"]}
    sweep = run_sweep(expand(keys), tmp_path)
    assert [outcome.status for outcome in sweep.outcomes] == ["finished", "finished"]
    assert [outcome.history[-1].round for outcome in sweep.outcomes] == [12, 24]


def test_runs_share_their_data_in_memory():
    keys = {"data": {"source": "diabetes"}, "train": {"step_size": 0.05}}
    configs = [check_config({"seed": seed, **keys}) for seed in (0, 1, 0)]
    first, second, third = plan_alike(configs)
    for one, other in zip(first.federation.silos, second.federation.silos, strict=True):
        assert one.features is other.features
        assert [rows.tolist() for rows in one.rows] != [rows.tolist() for rows in other.rows]
    assert third.federation is first.federation
