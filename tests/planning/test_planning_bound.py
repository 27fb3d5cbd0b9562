"""Finished runs held against Theorem 1: real run folders, and the page that is written into them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.core.network import PRESETS
from tdcd.planning import measure_bound, recommend_local_steps, write_page
from tdcd.planning.tables import over_q
from tdcd.theory import max_step_size
from tdcd.training.run import run

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 3},
    "model": {"block": "linear", "l2": 0.01},
    "evaluate": {"every": 5},
}

UNHURRIED = 3600.0
"""Seconds: a time limit that no machine, however busy, comes near."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An admissible step size, and one that is not."""
    out = tmp_path_factory.mktemp("runs")
    for name, step_size in {"small": 0.005, "large": 0.1}.items():
        train = {"rounds": 20, "local_steps": 5, "batch_size": 64, "step_size": step_size}
        run(check_config(KEYS | {"train": train}), out / name)
    return out


def parsed(page: Path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "report")
    from well_formed import Page

    return Page(page.read_text())


def test_an_admissible_run_stays_below_its_bound(folders, monkeypatch):
    news = []
    result = measure_bound(folders / "small", seconds=UNHURRIED, observe=news.append)
    assert result.iterations == 100
    assert result.holds
    assert result.average == pytest.approx(np.mean(result.gradients.squared_norms))
    parts = {name: getattr(result.bound, name) for name in ("initial", "variance", "staleness")}
    assert result.bound.total == pytest.approx(sum(parts.values()))
    assert parts[result.dominant] == max(parts.values())
    assert result.verdict.startswith("The bound holds: it is ")
    assert f"{result.bound.total / result.average:.3g} times" in result.verdict
    assert {"squared gradient norm", "L", "sigma", "gap"} <= {each.name for each in news}

    page = write_page(result)
    assert page == folders / "small" / "bound.html"
    found = parsed(page, monkeypatch)
    assert found.tags.count("svg") == 2
    assert result.verdict in found.texts
    assert "script" not in found.tags
    assert write_page(result).read_text() == page.read_text()


def test_the_dominating_term_is_named_with_its_remedy(folders):
    result = measure_bound(folders / "small", seconds=UNHURRIED)
    for name, words in {
        "initial": "more rounds lower it",
        "variance": "larger minibatches, more clients",
        "staleness": "fewer local steps",
    }.items():
        one = replace(result, bound=replace(result.bound, **{name: 1e9}))
        assert one.dominant == name
        assert words in one.verdict


def test_a_bound_that_does_not_hold_is_admitted(folders):
    result = measure_bound(folders / "small", seconds=UNHURRIED)
    broken = replace(result, bound=replace(result.bound, initial=1e-9, variance=0.0, staleness=0.0))
    assert broken.holds is False
    assert broken.verdict.startswith("The bound does not hold: the measured average exceeds it at some T.")


def test_an_inadmissible_step_size_is_said_and_gradients_are_still_shown(folders, monkeypatch):
    result = measure_bound(folders / "large", seconds=UNHURRIED)
    assert (result.bound, result.holds, result.dominant) == (None, None, None)
    proof, printed = (max_step_size(result.constants, 5, 2, condition) for condition in ("proof", "printed"))
    assert proof < printed < 0.1
    assert result.verdict == (
        "step_size = 0.1 is outside Theorem 1's range, so it bounds nothing here: with Q = 5 and N = 2 its proof "
        f"admits step sizes up to {proof:.4g} (the condition as printed, which lacks a factor N, up to {printed:.4g})."
    )
    assert len(result.gradients.squared_norms) == 20
    found = parsed(write_page(result), monkeypatch)
    assert found.tags.count("svg") == 1


def test_a_time_limit_shortens_the_measurement(folders):
    result = measure_bound(folders / "small", seconds=1e-6)
    assert result.iterations == 5
    assert result.constants.kind == "estimate"


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for name in ("config.toml", "federation.json", "history.jsonl"):
        (to / name).write_text((folder / name).read_text())
    return to


def test_folders_that_cannot_be_checked_are_refused(folders, tmp_path):
    def refuse(folder, words, error=ValueError, **options):
        with pytest.raises(error, match=words):
            measure_bound(folder, **options)

    refuse(folders, "is not a run folder: it has no config.toml", FileNotFoundError)
    refuse(folders / "small", "seconds must be a positive number, not -1", seconds=-1)

    zero = copied(folders / "small", tmp_path / "zero")
    settings = (zero / "config.toml").read_text()
    (zero / "config.toml").write_text(settings.replace("local_steps = 5", "local_steps = 0"))
    refuse(zero, "train.local_steps = 0: must be greater than or equal to 1", ConfigError)

    torch = copied(folders / "small", tmp_path / "torch")
    (torch / "config.toml").write_text(settings.replace('block = "linear"', 'block = "torch"\nmodule = "mine:make"'))
    refuse(torch, "model.block = 'torch': Theorem 1's constants need second derivatives, which torch", ConfigError)

    adam = copied(folders / "small", tmp_path / "adam")
    (adam / "config.toml").write_text(settings.replace('optimizer = "sgd"', 'optimizer = "adam"'))
    refuse(
        adam,
        r"train.optimizer = 'adam': Theorem 1 covers plain SGD with every client in every round; leave it",
        ConfigError,
    )

    unstarted = copied(folders / "small", tmp_path / "unstarted")
    first = (unstarted / "history.jsonl").read_text().splitlines()[0]
    (unstarted / "history.jsonl").write_text(first + "\n")
    refuse(unstarted, "holds no round yet: run more of it with tdcd run --resume")

    other = copied(folders / "small", tmp_path / "other")
    lines = (other / "history.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"train_loss": 0.75})
    (other / "history.jsonl").write_text("\n".join(lines) + "\n")
    refuse(other, "its loss before training was 0.75, and now it is 0.5; the data has changed since")


def test_the_safe_step_size_that_a_plan_prints_is_inside_the_range(tmp_path):
    """As printed, so that a run with it has a bound; the nearest three figures may be too much."""
    steps = (1, 5)
    table = recommend_local_steps(
        plan(check_config(KEYS)), PRESETS["lan"], candidates=steps, step_seconds=1e-5, target=0.4
    )
    exact = [forecast.safe_step_size for forecast in table.forecasts]
    printed = [row[1] for row in over_q(table).rows]
    assert any(float(f"{value:.3g}") > value for value in exact), "choose others: rounding these does no harm"
    assert all(0.99 * value < float(text) <= value for text, value in zip(printed, exact, strict=True))
    for local_steps, text in zip(steps, printed, strict=True):
        train = {"rounds": 2, "local_steps": local_steps, "batch_size": 64, "step_size": float(text)}
        run(check_config(KEYS | {"train": train}), tmp_path / text)
        assert measure_bound(tmp_path / text, seconds=UNHURRIED).bound is not None
