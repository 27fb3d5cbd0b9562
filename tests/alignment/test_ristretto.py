"""The group: blinding against repeated addition, its laws, and what is refused as a point."""

import numpy as np
import pytest
import rbcl

from tdcd.alignment.ristretto import blind, first_invalid, hash_to_points, random_scalar

NAMES = ["", "0", "Zoë", "客户-7", *map(str, range(1, 1100))]


def test_blinding_is_repeated_addition():
    points = hash_to_points(NAMES[:4])
    add = rbcl.crypto_core_ristretto255_add
    tripled = blind(points, (3).to_bytes(32, "little"))
    for point, triple in zip(points, tripled, strict=True):
        assert triple.tobytes() == add(add(point.tobytes(), point.tobytes()), point.tobytes())


def test_blinding_commutes_and_keeps_the_order_across_chunks_and_threads():
    points = hash_to_points(NAMES, workers=1)
    one, other = random_scalar(), random_scalar()
    there, back = blind(blind(points, one), other, workers=1), blind(blind(points, other), one, workers=3)
    assert there.shape == (len(NAMES), 32)
    assert (there == back).all()
    assert (blind(points[700:701], one) == blind(points, one)[700]).all()
    assert len({row.tobytes() for row in np.concatenate([points, there])}) == 2 * len(NAMES)


def test_progress_counts_every_point_once():
    counts = []
    blind(hash_to_points(NAMES), random_scalar(), advance=counts.append)
    assert sum(counts) == len(NAMES)
    assert len(counts) > 1


@pytest.mark.parametrize("bad", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31)], ids=["identity", "too large", "odd"])
def test_what_is_no_point_is_found(bad):
    points = hash_to_points(NAMES[:5]).copy()
    assert first_invalid(points) is None
    points[3] = np.frombuffer(bad, np.uint8)
    assert first_invalid(points) == 3
