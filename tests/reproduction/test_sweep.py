"""Sweeps on a small table: gathered right, resumed curve by curve, and honest about stand-ins."""

import csv
import json
import shutil
import urllib.request
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import tdcd
from tdcd import Federation, load, standardize
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.execution import Interrupted
from tdcd.data import DataUnavailable
from tdcd.data.superconductors import superconductors
from tdcd.pages.reproduction import write_page
from tdcd.reproduction.experiment import NAMES, Experiment, ExperimentCurve, load_experiment, merge
from tdcd.reproduction.results import joined, read_results
from tdcd.reproduction.sweep import predicted_ends, ridge_optimum, run_experiment, stand_in

BASE = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 2},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 6, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 2, "holdout": 0.0},
}


def tiny(**changes):
    curves = tuple(ExperimentCurve(f"Q = {q}", merge(BASE, {"train": {"local_steps": q}, **changes})) for q in (1, 4))
    return Experiment("fig2a", "A tiny <experiment>", curves, 2, ("nothing",), inset=3)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return run_experiment(tiny(), out), out


def test_curves_are_gathered_from_the_run_folders(done):
    result, out = done
    assert [curve.label for curve in result.curves] == ["Q = 1", "Q = 4"]
    for curve, slug in zip(result.curves, ("Q-1", "Q-4"), strict=True):
        assert curve.rounds.tolist() == [0, 2, 4, 6]
        for seed in (0, 1):
            lines = (out / "fig2a" / slug / f"seed-{seed}" / "history.jsonl").read_text().splitlines()
            assert curve.losses[seed].tolist() == [json.loads(line)["train_loss"] for line in lines]
        assert curve.megabytes[-1] == pytest.approx(sum(json.loads(lines[-1])["bytes"].values()) / 1e6)
    assert result.stand_in == ""
    assert [curve.local_steps for curve in result.curves] == [1, 4]
    assert [curve.hub_messages for curve in result.curves] == [2, 2]
    assert {curve.parameters for curve in result.curves} == {11}
    assert (result.curves[0].losses[0] != result.curves[0].losses[1]).any()


def test_a_finished_sweep_runs_nothing_again(done):
    result, out = done
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")}
    again = run_experiment(tiny(), out, observe=lambda step: pytest.fail("it ran again"))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")} == stamps
    np.testing.assert_array_equal(again.curves[1].losses, result.curves[1].losses)


def test_an_interrupted_sweep_continues_and_gives_the_same(done, tmp_path):
    calls = []

    def should_stop():
        calls.append(None)
        return len(calls) >= 2

    with pytest.raises(Interrupted):
        run_experiment(tiny(), tmp_path, should_stop=should_stop)
    begun = [path.read_text().splitlines() for path in tmp_path.rglob("history.jsonl")]
    assert begun
    assert any(len(lines) < 4 for lines in begun)
    resumed = run_experiment(tiny(), tmp_path)
    for curve, whole in zip(resumed.curves, done[0].curves, strict=True):
        np.testing.assert_array_equal(curve.losses, whole.losses)


def test_runs_of_other_settings_are_refused_and_kept(done):
    _, out = done
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(FileExistsError, match="seed-0 holds a run of other settings: remove it, or choose"):
        run_experiment(tiny(evaluate={"every": 3, "holdout": 0.0}), out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps


def test_a_folder_that_is_no_run_is_refused_and_kept(tmp_path):
    precious = tmp_path / "fig2a" / "Q-1" / "seed-0" / "my_code.py"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    with pytest.raises(FileExistsError, match="seed-0 is there already and is not an empty folder"):
        run_experiment(tiny(), tmp_path)
    assert precious.read_text() == "precious"


def test_a_run_torn_by_a_crash_continues(done, tmp_path):
    """A history cut in the middle of a line, and one without any checkpoint."""
    shutil.copytree(done[1] / "fig2a", tmp_path / "fig2a")
    torn, bare = tmp_path / "fig2a" / "Q-1" / "seed-0", tmp_path / "fig2a" / "Q-4" / "seed-1"
    lines = (torn / "history.jsonl").read_text().splitlines(keepends=True)
    (torn / "history.jsonl").write_text("".join(lines[:-1]) + lines[-1][:40])
    (torn / "model").rename(torn / "model.old")
    shutil.rmtree(bare / "model")
    (bare / "history.jsonl").write_text(lines[0])
    again = run_experiment(tiny(), tmp_path)
    for curve, whole in zip(again.curves, done[0].curves, strict=True):
        # A run that goes on alone is not in the batch that it was in, and may round otherwise.
        np.testing.assert_allclose(curve.losses, whole.losses, rtol=1e-6)


@pytest.fixture(scope="module")
def drawn_once():
    """The synthetic table is drawn once per seed, not for every curve of every experiment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tdcd.data.superconductors.superconductors", cache(superconductors))
        yield


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_can_be_planned_on_its_stand_in(name, full):
    experiment = load_experiment(name, full=full)
    replaced = stand_in(experiment)
    assert replaced.name in (f"{name}-superconductors", f"{name}-digits28")
    for curve in replaced.curves:
        config = check_config(curve.keys)
        assert plan(config).federation.name in ("superconductors (synthetic)", "digits enlarged to 28 x 28")


def test_the_ridge_optimum_is_scikit_learns():
    rows, _ = standardize(load("diabetes"))
    federation = Federation.cut(rows, silos=3, clients=2)
    fitted = Ridge(alpha=0.1 * len(rows.labels), fit_intercept=False).fit(rows.features.astype(float), rows.labels)
    residual = fitted.predict(rows.features) - rows.labels
    expected = residual @ residual / (2 * len(residual)) + 0.05 * fitted.coef_ @ fitted.coef_
    assert ridge_optimum(federation, 0.1) == pytest.approx(expected, rel=1e-9)


def test_no_curve_goes_below_the_optimum(done):
    result, _ = done
    assert all((curve.losses > result.optimum).all() for curve in result.curves)


def test_a_file_that_is_not_the_table_is_refused(tmp_path):
    (tmp_path / "data" / "superconductivity").mkdir(parents=True)
    (tmp_path / "data" / "superconductivity" / "train.csv").write_text("nothing\n1\n")
    wanted = {"source": "superconductivity", "rows": 200, "folder": str(tmp_path / "data")}
    with pytest.raises(DataUnavailable, match=r"train\.csv is not the UCI table: it has no column 'number_"):
        run_experiment(tiny(data=wanted), tmp_path / "out")


def test_absent_data_is_replaced_with_a_warning(tmp_path, monkeypatch):
    # All requests go to a proxy that is not there; urllib looks for proxies when it makes its opener.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)
    wanted = {"source": "superconductivity", "rows": 200, "folder": str(tmp_path / "data")}
    result = run_experiment(tiny(data=wanted), tmp_path / "out")
    assert result.data == "superconductors (synthetic)"
    assert f"as downloaded, into {tmp_path / 'data' / 'superconductivity'}" in result.stand_in
    page = write_page(tmp_path / "out", {"fig2a": result}).read_text()
    assert (result.name, result.stand_in != "") == ("fig2a", True)
    # In the caption of every figure, in every row of every table, in every picture and every line of the table.
    mark = "stand-in data: superconductors (synthetic)"
    assert page.count(f" · {mark}</figcaption>") == page.count("<figure>") == 3
    assert page.count(f'<th scope="row">Q = 1 · {mark}</th>') == 1
    assert page.count(f"<td>fig2a · {mark}</td>") == 2
    assert page.count("<td>not judged on stand-in data</td>") == 2
    with (tmp_path / "out" / "fig2a.csv").open() as lines:
        assert {row["data"] for row in csv.DictReader(lines)} == {mark}
    assert json.loads((tmp_path / "out" / "results.json").read_text())["claims"][0]["mark"] == mark
    assert "fig2a: run on superconductors (synthetic), not on the paper&#x27;s data" in page


def test_the_page_shows_figures_claims_and_choices(done):
    result, out = done
    page = write_page(out, {"fig2a": result}).read_text()
    assert page.count("<svg") == 3
    assert (out / "fig2a.png").read_bytes().startswith(b"\x89PNG")
    assert "A tiny &lt;experiment&gt;" in page
    assert "the paper&#x27;s size" in page
    numbers = json.loads((out / "results.json").read_text())
    assert numbers["claims"][0]["verdict"] in ("holds", "does not hold", "not decided at this size")
    curve = numbers["figures"]["fig2a"]["curves"][1]
    assert curve["rounds"] == [0, 2, 4, 6]
    assert curve["losses"] == result.curves[1].losses.tolist()
    with (out / "fig2a.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if (row["curve"], row["seed"]) == ("Q = 4", "1")]
    assert [float(row["loss"]) for row in rows] == curve["losses"][1]
    assert [int(row["local_steps"]) for row in rows] == [0, 8, 16, 24]


def test_results_say_what_they_were_made_with(done):
    result, out = done
    (made,) = result.made["with"]
    assert made["versions"]["tdcd"] == tdcd.__version__
    assert made["hardware"]["device"].startswith("cpu")
    assert result.made["started"] <= result.made["ended"]
    page = write_page(out, {"fig2a": result}).read_text()
    assert f"Made with tdcd {tdcd.__version__}" in page
    assert "matrix products in float32" in page


def test_figures_that_are_there_stay(done, tmp_path):
    result, _ = done
    write_page(tmp_path, {"fig2a": result})
    earlier = read_results(tmp_path / "results.json")
    assert earlier["fig2a"].made == result.made
    both = joined({"fig2c": replace(result, name="fig2c", full_size=False)}, earlier)
    page = write_page(tmp_path, both).read_text()
    assert "fig2a: the paper&#x27;s size" in page
    assert "fig2c: smaller" in page
    again = read_results(tmp_path / "results.json")
    assert [*again] == ["fig2a", "fig2c"]
    before = (tmp_path / "results.json").read_text()
    write_page(tmp_path, again)
    assert (tmp_path / "results.json").read_text() == before


@pytest.mark.parametrize(("text", "said"), [('{"figures": {}}', "is of another version"), ("{", "is damaged")])
def test_results_that_cannot_be_read_are_named(tmp_path, text, said):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=rf"results\.json {said}.* move it away"):
        read_results(tmp_path / "results.json")
    assert read_results(tmp_path / "none.json") == {}


def late():
    """A small federation whose second silo is four times slower, in step and with overlap and a period."""
    silos = [{"name": "quick", "clients": 2}, {"name": "slow", "clients": 2}]
    network = {"hub_hub": {"latency_ms": 30, "mbit_s": 100}, "step_ms": 2, "slower": {"slow": 4}}
    plain = merge({**BASE, "federation": {}}, {"silos": silos, "network": network, "train": {"local_steps": 4}})
    both = merge(plain, {"silos": [silos[0], {**silos[1], "period": 2}], "train": {"overlap": 1}})
    curves = (ExperimentCurve("in step", plain), ExperimentCurve("both", both))
    return Experiment("stragglers-ridge", "Late", curves, 2, ("a",), against=("seconds", "rounds"), phi_share=0.5)


def test_predicted_time_follows_the_slow_silo(tmp_path):
    experiment = late()
    result = run_experiment(experiment, tmp_path)
    plain, both = (curve.seconds for curve in result.curves)
    # Four steps and phi of half their time, four times as slow: 48 ms in every round, and the others' phi is there.
    per_round = np.diff(plain)[-1] / 2
    assert 0.048 < per_round < 0.12
    assert both[-1] < plain[-1]
    assert plain[0] == both[0] == 0
    ends = predicted_ends(check_config(experiment.curves[1].keys), 6, 0.5)
    assert both.tolist() == [ends[index] for index in (0, 2, 4, 6)]
    page = write_page(tmp_path, {"stragglers-ridge": result}).read_text()
    assert "What we say" in page
    assert "What the paper says" not in page
    assert "predicted seconds" in page
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert numbers["figures"]["stragglers-ridge"]["curves"][1]["seconds"][-1] == pytest.approx(ends[6], rel=1e-5)
