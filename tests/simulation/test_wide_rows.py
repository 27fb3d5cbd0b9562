"""Where rows stay on a CPU: the compiled program gathers wide ones faster than the host does, from memory in place."""

import numpy as np
import pytest

from tdcd import Federation, Linear, Objective, Settings, Silo, Simulation
from tdcd.core.execution import Execution
from tdcd.federation.partition import aligned_empty, contiguous_rows, equal_sizes
from tdcd.simulation.staging import WIDE, has_wide_rows

SAMPLES = 40
SETTINGS = Settings(local_steps=3, batch_size=8, step_size=4e-3)


def table(columns, seed=0):
    features = aligned_empty((SAMPLES, columns), np.float32)
    features[...] = np.random.default_rng(seed).standard_normal(features.shape)
    return features


def simulation(features, **execution):
    rows = contiguous_rows(SAMPLES, equal_sizes(SAMPLES, 2))
    silos = tuple(Silo(f"silo{index}", its, rows) for index, its in enumerate(features))
    labels = np.random.default_rng(9).standard_normal(SAMPLES).astype(np.float32)
    execution = Execution(**execution)
    return Simulation(Federation(silos, labels), [Linear()] * len(silos), Objective("squared"), SETTINGS, execution)


@pytest.mark.parametrize(
    ("widths", "wide"),
    [((WIDE, WIDE), True), ((WIDE - 1, WIDE), False), ((2 * WIDE, 3), True), ((21, 20), False)],
)
def test_rows_are_wide_if_those_of_all_silos_are_together(widths, wide):
    assert has_wide_rows([table(width) for width in widths]) is wide


def test_tables_that_would_be_copied_or_converted_are_left_to_the_host():
    whole = table(2 * WIDE + 1)
    assert not has_wide_rows([table(2 * WIDE).reshape(SAMPLES, 2, WIDE)])
    assert not has_wide_rows([table(2 * WIDE).view(np.int32)])
    assert not has_wide_rows([whole[:, 1:]])
    assert not has_wide_rows([np.ascontiguousarray(whole).ravel()[1 : 1 + WIDE].reshape(1, WIDE)])


def test_a_mapped_file_stays_one(tmp_path):
    np.save(tmp_path / "wide.npy", table(WIDE))
    mapped = np.load(tmp_path / "wide.npy", mmap_mode="r")
    assert simulation([mapped])._on_device is None


def test_wide_rows_stay_with_the_program_and_train_alike():
    features = [table(WIDE, 1), table(WIDE + 3, 2)]
    by_itself, by_host = simulation(features), simulation(features, keep="host")
    assert by_itself.engine == by_host.engine == "grouped"
    assert (by_itself._on_device is None, by_host._on_device is None) == (False, True)
    for held, given in zip(by_itself._engine._features, features, strict=True):
        assert held.unsafe_buffer_pointer() == given.ctypes.data
    both = [one.advance(one.init(), 0, 5).blocks for one in (by_itself, by_host)]
    for block, same in zip(*both, strict=True):
        assert np.abs(block["weight"]).max() > 1e-2
        np.testing.assert_array_equal(block["weight"], same["weight"])
    assert simulation([table(21), table(20)])._on_device is None
