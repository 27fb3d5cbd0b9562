"""Packed ids are the texts that they were made of, in the order of all parties, in a fraction of the memory."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tdcd.tables.rows import id_order
from tdcd.tables.sample_ids import AT_ONCE, SampleIds

pytestmark = pytest.mark.quick

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.from_regex(r"-?[0-9]{1,20}", fullmatch=True)
KINDS = st.one_of(st.lists(TEXTS), st.lists(NUMBERS), st.lists(st.one_of(TEXTS, NUMBERS)))


def written(ids):
    pieces = []
    ids.write_json(pieces.append)
    return b"".join(pieces).decode()


@given(KINDS)
@example(["1", "01", "-1", "--1", "-", ""])
@example(["9" * 18, "-" + "9" * 18, "1" * 19, "0" * 101 + "7"])
@example(["a\0", "a", "\0"])
@example(["\U0001f600", "\uffff", "é"])
@example(["²", "1"])
def test_packed_ids_are_the_texts_in_the_order_of_all_parties(texts):
    packed = SampleIds.of(texts)
    assert [*packed] == texts
    assert [packed[place] for place in range(len(texts))] == texts
    assert packed.order().tolist() == id_order(texts).tolist()
    assert written(packed) == json.dumps(texts)
    assert packed == SampleIds.of(texts)
    assert packed != SampleIds.of([*texts, "more"])


@given(KINDS, KINDS)
@example(["1"], ["x" * 200_000, *["2"] * 10])
def test_joined_ids_are_those_of_all_parts_and_repeats_are_found(left, right):
    joined = SampleIds.joined([SampleIds.of(left), SampleIds.of(right)])
    every = [*left, *right]
    assert [*joined] == every
    ordered = joined.take(joined.order())
    repeats = [place for place in range(1, len(every)) if ordered[place] == ordered[place - 1]]
    assert ordered.repeated() == (repeats[0] if repeats else None)


def test_pieces_of_the_list_are_written_as_the_whole_list():
    texts = [str(number) for number in range(2 * AT_ONCE + 3)]
    assert written(SampleIds.of(texts)) == json.dumps(texts)


def test_a_long_id_does_not_give_all_ids_its_room():
    texts = [str(number) for number in range(100_000)]
    tracemalloc.start()
    try:
        kept = SampleIds.of(texts), SampleIds.of([*texts[:-1], "x" * 10_000])
        assert tracemalloc.get_traced_memory()[0] < 3e6
    finally:
        tracemalloc.stop()
    assert kept[1].order().tolist() == np.argsort([*texts[:-1], "x"], kind="stable").tolist()
