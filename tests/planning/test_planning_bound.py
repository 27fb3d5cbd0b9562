"""Finished runs held against Theorem 1: real run folders, and the page that is written into them."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from support.well_formed import Page
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.participation import RandomClients
from tdcd.core.network import PRESETS
from tdcd.core.variant import Variant
from tdcd.pages.bound import write_page
from tdcd.planning import measure_bound, rank_variants, recommend_local_steps
from tdcd.planning.facts import refuse_uncovered
from tdcd.planning.tables import bound_constants, configuration_lines, over_q, terms
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


def parsed(page: Path):
    return Page(page.read_text())


def test_an_admissible_run_stays_below_its_bound(folders):
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
    found = parsed(page)
    assert found.tags.count("svg") == 2
    assert result.verdict in found.texts
    assert found.tags.count("script") == 1
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


def test_an_inadmissible_step_size_is_reported_and_gradients_are_still_shown(folders):
    result = measure_bound(folders / "large", seconds=UNHURRIED)
    assert (result.bound, result.holds, result.dominant) == (None, None, None)
    proof, printed = (max_step_size(result.constants, 5, 2, condition) for condition in ("proof", "printed"))
    assert proof < printed < 0.1
    assert result.verdict == (
        "step_size = 0.1 is outside Theorem 1's range, so it bounds nothing here: with Q = 5 and N = 2 its proof "
        f"admits step sizes up to {proof:.4g} (the condition as printed, which lacks a factor N, up to {printed:.4g})."
    )
    assert len(result.gradients.squared_norms) == 20
    found = parsed(write_page(result))
    assert found.tags.count("svg") == 1


def test_a_time_limit_shortens_the_measurement(folders, monkeypatch):
    """By this clock the gradient of one round takes longer than all may, and the constants nothing."""
    news = []
    clock = SimpleNamespace(monotonic=lambda: 6.0 * sum(each.name == "squared gradient norm" for each in news))
    monkeypatch.setattr("tdcd.theory.progress.time", clock)
    result = measure_bound(folders / "small", seconds=10.0, observe=news.append)
    assert result.iterations == 5
    assert (result.constants.kind, result.noise.draws) == ("exact", (64, 64))
    with pytest.raises(
        ValueError, match="time was up when sigma rested on 1 minibatch, and it takes at least 10: give"
    ):
        measure_bound(folders / "small", seconds=1e-300)


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


LATE = {
    "overlap": {"train": {"overlap": 2}},
    "period": {"silos": [{"name": "slow", "clients": 3, "period": 4}, {"name": "fast", "clients": 3}]},
    "bits": {"exchange": {"phi_bits": 4}},
}


def late_run(name: str, out: Path, rounds: int = 12, **train: float) -> Path:
    keys = {**KEYS, **LATE[name]}
    if "silos" in keys:
        keys["federation"] = {}
    chosen = {"rounds": rounds, "local_steps": 5, "batch_size": 64, "step_size": 0.002} | LATE[name].get("train", {})
    run(check_config(keys | {"train": chosen | train}), out)
    return out


@pytest.fixture(scope="module")
def late_bounds(tmp_path_factory):
    out = tmp_path_factory.mktemp("late")
    return {name: measure_bound(late_run(name, out / name), seconds=UNHURRIED) for name in LATE}


def test_late_runs_and_few_bits_stay_below_their_bounds(late_bounds):
    assert all(result.holds for result in late_bounds.values())
    words = {name: [row[0] for row in terms(result).rows] for name, result in late_bounds.items()}
    assert "staleness: eta^2 L_max^2 sigma^2 Q^2 N [1 + (N-1)(D+1)^2]" in words["overlap"]
    assert "variance: eta L sum_j m_j sigma^2 / K" in words["period"]
    assert "staleness: eta^2 L_max^2 sigma^2 Q^2 N^2" in words["bits"]
    # The slow silo's block is the theorem's at the starts of its periods.
    assert late_bounds["period"].gradients.iterations.tolist() == [20, 40, 60]
    assert len(late_bounds["overlap"].gradients.iterations) == 12
    assert ["timing", "periods 4, 1", "the run's settings"] in bound_constants(late_bounds["period"]).rows
    in_step, late = (max_step_size(late_bounds["overlap"].constants, 5, 2, timing=Overlap(d)) for d in (0, 2))
    assert late_bounds["overlap"].max_step_size("proof") == late < in_step


def test_a_step_size_that_is_too_large_for_an_overlap_names_the_one_that_is_inside(late_bounds, tmp_path):
    known = late_bounds["overlap"].constants
    limits = [max_step_size(known, 5, 2, timing=Overlap(rounds)) for rounds in range(3)]
    result = measure_bound(late_run("overlap", tmp_path / "run", step_size=0.9 * limits[1]), seconds=UNHURRIED)
    assert result.bound is None
    assert f"with Q = 5, N = 2 and overlap = 2 its proof admits step sizes up to {limits[2]:.4g}. " in result.verdict
    assert result.verdict.endswith("With this step size, overlap = 1 is the largest inside.")
    slow = replace(late_bounds["period"], bound=None)
    assert slow.verdict.endswith(f"With period = 1 at every silo, step sizes up to {limits[0]:.4g} are inside.")


def test_an_overlap_that_leaves_hardly_any_step_size_gets_advice(late_bounds):
    result = late_bounds["overlap"]
    late = result.planned._replace(variant=Variant(timing=Overlap(900)))
    found = replace(result, planned=late).verdict
    assert "overlap = 900 leaves step sizes up to " in found
    assert "Set train.overlap = " in found
    table = recommend_local_steps(late, PRESETS["lan"], candidates=[5], step_seconds=1e-5, target=0.499)
    assert table.forecasts[0].safe_step_size == max_step_size(table.constants, 5, 2, timing=Overlap(900))
    assert any("Set train.overlap = " in note for note in table.notes)


def test_a_run_shorter_than_its_periods_is_refused(tmp_path):
    folder = late_run("period", tmp_path / "run", rounds=4)
    lines = (folder / "history.jsonl").read_text().splitlines()
    cut = [line for line in lines if json.loads(line)["round"] == 0]
    cut.append(json.dumps(json.loads(lines[-1]) | {"round": 3}))
    (folder / "history.jsonl").write_text("\n".join(cut) + "\n")
    with pytest.raises(ValueError, match="holds 3 rounds, and its silos' periods all begin together every 4 rounds"):
        measure_bound(folder)


class OwnTiming(Overlap):
    """May do anything."""


def test_what_is_covered_is_judged_part_by_part():
    late = check_config(KEYS | {"train": {"overlap": 2, "step_size": 0.05}})
    refuse_uncovered(late, plan(late).variant)
    own = late.model_copy(update={"train": late.train.model_copy(update={"variant": "mine:late"})})
    for config, variant, named in [
        (late, Variant(timing=OwnTiming(2)), "a variant with another timing"),
        (late, Variant(timing=Overlap(2), participation=RandomClients(0.5)), "a variant with another participation"),
        (own, Variant(timing=Overlap(2)), "train.variant = 'mine:late'"),
    ]:
        with pytest.raises(ConfigError, match=f"{named}: Theorem 1 covers plain SGD with every client"):
            refuse_uncovered(config, variant)
    clipped = check_config(KEYS | {"train": {"clip": 1.0, "step_size": 0.05}})
    with pytest.raises(ConfigError, match=r"train.clip = 1.0: Theorem 1 covers plain SGD"):
        refuse_uncovered(clipped, plan(clipped).variant)
    weighted = check_config(KEYS | {"train": {"class_weights": "balanced"}})
    with pytest.raises(ConfigError, match=r"train.class_weights = 'balanced': the constants of Theorem 1 are worked"):
        refuse_uncovered(weighted, Variant())


@pytest.fixture(scope="module")
def reused_bounds(tmp_path_factory):
    """Runs with one minibatch per round: inside the range, outside it, and of another kind."""
    out = tmp_path_factory.mktemp("reused")
    changes = {
        "inside": {"step_size": 2e-4},
        "outside": {"step_size": 0.1},
        "overlap": {"step_size": 2e-4, "overlap": 1},
        "mean": {"step_size": 2e-4, "gradient": "mean"},
    }
    for name, change in changes.items():
        train = {"rounds": 10, "local_steps": 5, "batch_size": 64, "minibatches": "reused"} | change
        run(check_config(KEYS | {"train": train}), out / name)
    return {name: measure_bound(out / name, seconds=UNHURRIED) for name in changes}


def test_reused_minibatches_have_a_bound_of_their_own(reused_bounds):
    result = reused_bounds["inside"]
    assert result.holds
    assert result.caveats == ()
    known, noise = result.reused
    assert known.expected > known.L
    assert 0 < noise.averaged < noise.spread
    expected = known.bound(noise, step_size=2e-4, local_steps=5, iterations=50, gap=result.gap)
    assert result.bound == expected
    assert result.max_step_size("proof") == known.max_step_size(5)
    words = [row[0] for row in terms(result).rows]
    assert words[:3] == [
        "initial: 2 (L(start) - L_inf) / (c eta T)",
        "variance: eta L Q (1 + rho) s^2 / c",
        "drift: (rho^2 + eta L Q rho (1 + rho)) v^2 / c",
    ]
    named = {row[0] for row in bound_constants(result).rows}
    assert {"L", "Lambda", "E", "rho, c", "s^2", "v^2"} <= named
    assert "sigma_max" not in named
    for term, remedy in {"variance": "fewer local steps or a smaller", "staleness": "several steps on one"}.items():
        assert remedy in replace(result, bound=replace(result.bound, **{term: 1e9})).verdict
    assert result.verdict in parsed(write_page(result)).texts


def test_reused_minibatches_that_no_theorem_covers_say_what_is_missing(reused_bounds):
    result = reused_bounds["outside"]
    largest = result.reused.constants.max_step_size(5)
    assert result.verdict == (
        "step_size = 0.1 is outside the range of the theorem for reused minibatches, so it bounds nothing here: with "
        f"Q = 5 it admits step sizes up to {largest:.4g}."
    )
    for name, words in {"overlap": "is about rounds in step", "mean": "gradient = 'unbiased' makes it and"}.items():
        result = reused_bounds[name]
        assert (result.bound, result.reused, result.noise) == (None, None, None)
        assert result.verdict.startswith("No theorem covers this run. minibatches = 'reused': the theorem for reused")
        assert words in result.verdict
        assert parsed(write_page(result)).tags.count("svg") == 1


@pytest.mark.parametrize("change", [{}, {"gradient": "mean"}, {"overlap": 1}])
def test_a_plan_of_reused_minibatches(change):
    train = {"batch_size": 64, "step_size": 0.005, "minibatches": "reused", **change}
    planned = plan(check_config(KEYS | {"train": train}))
    found = recommend_local_steps(planned, PRESETS["lan"], candidates=[1, 5], step_seconds=1e-5, target=0.45)
    one, five = found.forecasts
    if change:
        assert one.safe_step_size == max_step_size(found.constants, 1, 2, timing=found.facts.timing)
        assert (five.safe_step_size, five.bound_rounds) == (None, None)
        assert any("No safe step sizes for Q above 1: minibatches = 'reused': the" in note for note in found.notes)
        return
    known, noise = found.facts.reused
    assert five.safe_step_size == known.max_step_size(5)
    assert five.bound_rounds is not None
    # No step size has a bound at the target sooner.
    level = 2 * 0.01 * (0.45 - found.lowest)
    gap = found.initial - found.facts.least
    for step_size in np.geomspace(1e-9, known.max_step_size(5), 200):
        limit = known.bound(noise, step_size=step_size, local_steps=5, iterations=5 * (five.bound_rounds - 1), gap=gap)
        assert limit.total > level
    assert any(note.startswith("minibatches = 'reused': safe step sizes and rounds") for note in found.notes)


def test_a_steered_run_is_not_held_against_its_gradients(tmp_path):
    run(check_config(KEYS | {"train": {"rounds": 3, "step_size": "auto"}}), tmp_path / "auto")
    message = (
        r"train.step_size = 'auto': Theorem 1 is about plain steps of one length; these have momentum, and the loss "
        r"steers them. Give it a number, such as a safe one that tdcd plan"
    )
    with pytest.raises(ConfigError, match=message):
        measure_bound(tmp_path / "auto")


def test_a_plan_without_a_step_size_takes_the_safe_ones():
    config = check_config(KEYS | {"train": {"step_size": "auto"}})
    planned = plan(config)
    found = recommend_local_steps(planned, PRESETS["lan"], candidates=[1, 5], step_seconds=1e-5, target=0.4)
    for forecast in found.forecasts:
        assert forecast.step_size == forecast.safe_step_size
        assert forecast.step_size == max_step_size(found.constants, forecast.local_steps, 2)
        assert forecast.rounds is not None
    assert any("plain local steps on minibatches of 128, each Q with its safe step" in note for note in found.notes)
    ranking = rank_variants(planned, found, seconds=UNHURRIED)
    lines = configuration_lines(ranking, config)
    assert {"batch_size = 128", "[model]", "l2 = 0.01"} <= set(lines)
    # What it says to write is what was planned.
    written = check_config(KEYS | tomllib.loads("\n".join(lines)))
    assert written.train.batch_size == 128
    assert not written.train.is_automatic
    poisson = plan(check_config({**KEYS, "model": {"loss": "poisson"}, "train": {"step_size": "auto"}}))
    with pytest.raises(
        ConfigError, match=r"train.step_size = 'auto': no safe step size is known \(.*; give it a number"
    ):
        recommend_local_steps(poisson, PRESETS["lan"], candidates=[1], step_seconds=1e-5)
