"""Tables of silos that are alike, next to each other."""

import numpy as np
import pytest

from tdcd.simulation.engines.grouped import SMALL_TABLES, stacked

pytestmark = pytest.mark.quick

SAME = ((1, 5), (1, 10))


def tables(*widths, rows=3, dtype=np.float32):
    return [np.full((rows, width), width, dtype) for width in widths]


def test_a_stack_has_the_narrowest_silo_first_and_zeros_next_to_it():
    both = stacked(tables(5, 4), [SAME, SAME])
    assert both.tolist() == [[[4, 4, 4, 4, 0]] * 3, [[5] * 5] * 3]


@pytest.mark.parametrize(
    ("silos", "shapes"),
    [
        (tables(4, 9), [SAME, SAME]),
        (tables(4, 4), [SAME, ((1, 6), (1, 10))]),
        ([*tables(4), *tables(4, dtype=np.uint8)], [SAME, SAME]),
        (tables(4, 4, rows=SMALL_TABLES // 32 + 1), [SAME, SAME]),
    ],
)
def test_tables_that_are_not_alike_or_large_stay_where_they_are(silos, shapes):
    assert stacked(silos, shapes) is None


def test_a_mapped_file_stays_one(tmp_path):
    np.save(tmp_path / "features.npy", tables(4)[0])
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert stacked([mapped, *tables(4)], [SAME, SAME]) is None
