"""Which keys may list values, what the combinations are called, and what is refused."""

import pytest

from tdcd.config import Config, ConfigError
from tdcd.training.sweep.grid import expand, varied_keys


def problems(keys):
    with pytest.raises(ConfigError) as caught:
        expand(keys)
    return caught.value.problems


def test_every_combination_the_last_key_fastest():
    grid = expand({"seed": [0, 1], "train": {"step_size": [0.1, 0.2], "rounds": 7}})
    assert grid.varied == ("seed", "train.step_size")
    assert [setting.name for setting in grid.settings] == [
        "seed=0,step_size=0.1",
        "seed=0,step_size=0.2",
        "seed=1,step_size=0.1",
        "seed=1,step_size=0.2",
    ]
    last = grid.settings[-1]
    assert last.values == {"seed": 1, "train.step_size": 0.2}
    assert (last.config.seed, last.config.train.step_size, last.config.train.rounds) == (1, 0.2, 7)


def test_keys_that_are_lists_by_nature_keep_their_meaning():
    keys = {
        "federation": {"clients": [3, 2], "sizes": [[1.0, 1.0, 1.0], [1.0, 2.0]]},
        "model": {"hidden": [8, 4], "block": ["mlp", "linear"], "channels": [4], "kernel": [5, 3]},
    }
    assert varied_keys(keys) == {}
    (only,) = expand(keys).settings
    assert only.config.federation.clients == [3, 2]


def test_numbers_words_and_truth_values_may_be_listed():
    keys = {
        "dtype": ["float32", "float64"],
        "data": {"source": ["digits", "diabetes"], "standardize": [True, False]},
        "train": {"minibatches": ["fresh", "full"]},
        "evaluate": {"holdout": [0.0, 0.2]},
    }
    grid = expand(keys)
    assert len(grid.settings) == 2**5
    assert grid.settings[0].name == "dtype=float32,source=digits,standardize=true,minibatches=fresh,holdout=0.0"
    assert len({setting.name for setting in grid.settings}) == 2**5


def test_keys_that_end_alike_are_distinguished():
    names = [setting.name for setting in expand({"seed": [3], "data": {"seed": [4]}}).settings]
    assert names == ["seed=3,data.seed=4"]


def test_a_name_is_fit_for_a_folder():
    grid = expand({"data": {"folder": ["/a/b", "c d"]}})
    assert [setting.name for setting in grid.settings] == ["folder=-a-b", "folder=c-d"]


def test_without_lists_there_is_one_setting():
    assert [setting.config for setting in expand({}).settings] == [Config()]


def test_problems_name_the_key_and_the_value_each_once():
    assert problems({"seed": []}) == ["seed = []: list at least one value"]
    assert problems({"train": {"local_steps": [1, 5, 1]}}) == ["train.local_steps = [1, 5, 1]: lists 1 twice"]
    assert problems({"seed": [0, 1], "train": {"local_steps": [0, 5], "step_size": [0.1, -1.0], "rouns": [1]}}) == [
        "train.local_steps = 0: must be greater than or equal to 1 or must be 'auto'",
        "train.rouns: there is no such key; did you mean 'rounds'?",
        "train.step_size = -1.0: must be greater than 0 or must be 'auto'",
    ]
    (many,) = problems({"seed": list(range(200)), "data": {"seed": list(range(200))}})
    assert many == "seed, data.seed: list 40,000 settings; at most 10,000 are run"
