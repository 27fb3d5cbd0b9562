"""The experiments say what the paper says."""

import pytest

from tdcd.config import check_config
from tdcd.reproduction.experiment import AS_PRINTED, FIGURES, NAMES, PAPER, SETS, expand, load_experiment, merge


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_curve_is_a_valid_configuration(name, full):
    experiment = load_experiment(name, full=full)
    for curve in experiment.curves:
        check_config(curve.keys)
    assert len({curve.slug for curve in experiment.curves}) == len(experiment.curves)
    assert experiment.num_seeds >= 5
    assert experiment.chosen


# Section 5 of the paper, and the swept quantity.
SETTINGS = {
    "fig2a": ({"silos": 4, "clients": 5, "batch_size": 100, "step_size": 0.001, "rows": 20_000}, "local_steps"),
    "fig2b": ({"clients": 2, "local_steps": 4, "batch_size": 20, "rows": 2000}, "silos"),
    "fig2c": ({"silos": 4, "local_steps": 4, "batch_size": 500, "rows": 2000}, "clients"),
    "fig3a": ({"silos": 2, "clients": 10, "batch_size": 640, "step_size": 0.001}, "local_steps"),
    "fig3b": ({"silos": 2, "batch_size": 1250, "step_size": 0.001}, "clients"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_full_size_is_the_papers(name):
    fixed, swept = SETTINGS[name]
    values = []
    for curve in load_experiment(name, full=True).curves:
        config = check_config(curve.keys)
        flat = {**dict(config.data), **dict(config.federation), **dict(config.model), **dict(config.train)}
        flat["rows"] = config.data.rows
        assert {key: flat[key] for key in fixed} == fixed
        assert config.data.source == ("mnist" if name.startswith("fig3") else "superconductivity")
        values.append(flat[swept])
    assert values == sorted(set(values))


def test_equal_local_steps_where_the_experiment_says_so():
    for name, full in [("error", True), ("accuracy", True), ("accuracy", False)]:
        trains = [check_config(curve.keys).train for curve in load_experiment(name, full=full).curves]
        assert len({train.rounds * train.local_steps for train in trains}) == 1


@pytest.mark.parametrize(
    ("ours", "papers", "full"), [("ridge", "fig2a", False), ("ridge", "fig2a", True), ("cnn", "fig3a", True)]
)
def test_stragglers_and_few_bits_have_the_papers_workloads(ours, papers, full):
    paper = check_config(load_experiment(papers, full=full).curves[2].keys)
    for name in (f"stragglers-{ours}", f"bits-{ours}"):
        config = check_config(load_experiment(name, full=full).curves[0].keys)
        # A slow silo's effect shows in fewer rounds.
        train = (
            config.train if full or "bits" in name else config.train.model_copy(update={"rounds": paper.train.rounds})
        )
        assert (config.data, config.model, train, config.evaluate) == (
            paper.data,
            paper.model,
            paper.train,
            paper.evaluate,
        )
        assert (config.num_silos, config.client_counts) == (paper.num_silos, paper.client_counts)


@pytest.mark.parametrize("name", ["stragglers-ridge", "stragglers-cnn"])
def test_one_silo_is_four_times_slower_and_can_have_that_period(name):
    by_label = {curve.label: check_config(curve.keys) for curve in load_experiment(name, full=False).curves}
    for config in by_label.values():
        assert config.network.slower == {config.silos[-1].name: 4}
    found = {label: (config.train.overlap, config.silos[-1].period) for label, config in by_label.items()}
    assert found == {"in step": (0, 1), "overlap": (1, 1), "period": (0, 4), "both": (1, 4)}
    assert all(silo.period == 1 for config in by_label.values() for silo in config.silos[:-1])


def test_a_set_of_experiments_has_one_name():
    assert expand([]) == [*PAPER]
    assert expand(["fig2b", "stragglers"]) == ["fig2b", *SETS["stragglers"]]
    assert expand(["bits-cnn"]) == ["bits-cnn"]
    assert {*expand([]), *expand([*SETS])} == {*NAMES}


def test_merge_keeps_what_is_not_named():
    below = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge(below, {"a": {"b": 5}, "e": 6}) == {"a": {"b": 5, "c": 2}, "d": 3, "e": 6}
    assert below == {"a": {"b": 1, "c": 2}, "d": 3}


def test_an_unknown_experiment_lists_those_there_are():
    with pytest.raises(ValueError, match="there is no experiment 'fig9'; there are fig2a, fig2b"):
        load_experiment("fig9", full=False)


def test_how_a_run_is_carried_out_can_be_set_and_nothing_else():
    chosen = load_experiment("fig3b", full=True, assignments=["train.precision=float32", "data.keep=host"])
    for curve, plain in zip(chosen.curves, load_experiment("fig3b", full=True).curves, strict=True):
        config = check_config(curve.keys)
        assert (config.train.precision, config.data.keep) == ("float32", "host")
        assert check_config(plain.keys).train.precision == "tf32"
        assert config.train.model_copy(update={"precision": "tf32"}) == check_config(plain.keys).train
    with pytest.raises(ValueError, match=r"--set train\.rounds=5: .* only train\.precision and data\.keep can be set"):
        load_experiment("fig2b", full=True, assignments=["train.rounds=5"])


def test_the_size_is_the_papers_unless_something_is_smaller():
    smaller = {name for name in NAMES if not load_experiment(name, full=False).full_size}
    assert smaller == {"fig3a", "fig3b", "accuracy", "stragglers-cnn", "bits-cnn"}
    assert all(load_experiment(name, full=True).full_size for name in NAMES)


@pytest.mark.parametrize("name", AS_PRINTED)
def test_the_objective_as_printed_differs_in_lambda_alone(name):
    printed, plain = load_experiment(name, full=True), load_experiment(name.removesuffix("-lambda1"), full=True)
    for ours, other in zip(printed.curves, plain.curves, strict=True):
        assert ours.label == other.label
        assert ours.keys == merge(other.keys, {"model": {"l2": 1.0}})


def test_ridge_regression_runs_in_full_float32_on_any_device():
    for name in NAMES:
        config = check_config(load_experiment(name, full=True).curves[0].keys)
        assert config.train.precision == ("float32" if config.model.block == "linear" else "tf32")
