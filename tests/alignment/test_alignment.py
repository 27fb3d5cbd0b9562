"""The protocol against plain set intersection, and every message that must be refused."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.alignment import Alignment, AlignmentError
from tdcd.alignment.alignment import MOST_COMPARISONS
from tdcd.alignment.messages import Announcement
from tdcd.alignment.ristretto import hash_to_points
from tdcd.tables.errors import TableError
from tdcd.tables.rows import id_order
from tdcd.tables.sample_list import SampleList

pytestmark = pytest.mark.quick

SECRET = bytes(range(32))


def silos(sets, **options):
    return [Alignment(index, len(sets), ids, SECRET, **options) for index, ids in enumerate(sets)]


def deliver(parties, rng=None, alter=lambda sender, message: message):
    """Run to the end, messages in an order drawn from ``rng``; everything that was sent, as (sender, message)."""
    rng = rng or random.Random(0)
    waiting = [(party, message) for party, silo in enumerate(parties) for message in silo.start()]
    sent = []
    while waiting:
        sender, message = waiting.pop(rng.randrange(len(waiting)))
        sent.append((sender, message))
        message = alter(sender, message)
        replies = parties[message.receiver].receive(sender, message.step, message.payload)
        waiting += [(message.receiver, reply) for reply in replies]
    return sent


def altering(sender, step, change):
    """A network that changes the payload of one step of one silo."""

    def alter(silo, message):
        payload = change(message.payload.copy()) if (silo, message.step) == (sender, step) else message.payload
        return type(message)(message.receiver, message.step, payload)

    return alter


def set_row(row, value):
    def change(payload):
        payload[row] = value
        return payload

    return change


id_sets = st.lists(
    st.sets(st.text(max_size=3) | st.sampled_from("abc"), min_size=1, max_size=8), min_size=2, max_size=4
)


@given(sets=id_sets, rng=st.randoms(use_true_random=False))
@num_examples(40)
def test_every_silo_finds_the_plain_intersections_whatever_the_order_of_messages(sets, rng):
    parties = silos(sets, workers=1)
    deliver(parties, rng)
    assert all(party.done for party in parties)
    common = [party.common for party in parties]
    assert set(common[0]) == set.intersection(*sets)
    assert all(ids == common[0] for ids in common)
    for silo, party in enumerate(parties):
        assert party.counts == {other: len(sets[silo] & sets[other]) for other in range(len(sets)) if other != silo}


@given(sets=id_sets, rng=st.randoms(use_true_random=False))
@num_examples(20)
def test_counts_are_the_plain_counts_and_reveal_no_ids(sets, rng):
    parties = silos(sets, workers=1, answer="counts")
    sent = deliver(parties, rng)
    for silo, party in enumerate(parties):
        assert party.counts == {other: len(sets[silo] & sets[other]) for other in range(len(sets)) if other != silo}
        with pytest.raises(RuntimeError, match="only counts were asked for: no party knows which ids are common"):
            _ = party.common
    for _, message in sent:
        if message.step == "returned":  # in an order that says nothing of the order in which they were sent
            rows = [row.tobytes() for row in message.payload]
            assert rows == sorted(rows)


@given(sets=id_sets, new=st.sets(st.text(min_size=4, max_size=5), max_size=4), rng=st.randoms(use_true_random=False))
@num_examples(20)
def test_known_ids_are_not_sent_again_and_new_ones_are_found(sets, new, rng):
    sets = [ids | {"z"} for ids in sets]
    known = set.intersection(*sets)
    grown = [ids | (new if silo % 2 == 0 or len(new) % 2 else set()) for silo, ids in enumerate(sets)]
    parties = silos(grown, workers=1, known=sorted(known))
    sent = deliver(parties, rng)
    assert set(parties[0].common) == set.intersection(*grown)
    for sender, message in sent:
        if message.step == "blinded":
            assert len(message.payload) == len(grown[sender] - known)


def plain_list(sets, labelled):
    """Every silo's numbers of its samples: of the first silo with labels in order of ids, then of the next, ..."""
    found = {}
    for silo in sorted(labelled):
        own = [*sets[silo]]
        for place in id_order(own):
            found.setdefault(own[place], len(found))
    return [{name: found[name] for name in ids if name in found} for ids in sets], len(found)


def star(sets, centre, **options):
    """One silo alone has labels, and the others are compared with it alone."""
    others = [silo for silo in range(len(sets)) if silo != centre]
    return [
        Alignment(
            silo,
            len(sets),
            ids,
            SECRET,
            workers=1,
            labelled=[centre],
            compared=others if silo == centre else [centre],
            **{name: values[silo] for name, values in options.items()},
        )
        for silo, ids in enumerate(sets)
    ]


def lists_of(parties):
    names = [f"silo{index}" for index in range(len(parties))]
    return [party.samples(names) for party in parties]


@given(sets=id_sets, seed=st.integers(0, 99), rng=st.randoms(use_true_random=False))
@num_examples(40)
def test_samples_have_the_same_numbers_in_all_silos_and_each_learns_who_has_its_own(sets, seed, rng):
    sets = [ids | {"z"} for ids in sets]
    labelled = [silo for silo in range(len(sets)) if seed >> silo & 1] or [len(sets) - 1]
    parties = silos(sets, workers=1, labelled=labelled)
    deliver(parties, rng)
    numbers, total = plain_list(sets, labelled)
    for silo, listed in enumerate(lists_of(parties)):
        assert dict(zip(listed.ids, listed.numbers.tolist(), strict=True)) == numbers[silo]
        assert listed.total == total
        for other, has in listed.held_by.items():
            assert has.tolist() == [name in sets[int(other.removeprefix("silo"))] for name in listed.ids]


def test_silos_without_labels_learn_nothing_of_each_other_and_know_places_only_of_what_both_have():
    sets = [["a", "b", "c"], ["b", "c", "d", "q"], ["c", "d", "q"]]
    parties = star(sets, 1)
    sent = deliver(parties)
    between = [message.step for sender, message in sent if {sender, message.receiver} == {0, 2}]
    assert between == ["announced", "announced"]
    found = lists_of(parties)
    assert [dict(zip(one.ids, one.numbers.tolist(), strict=True)) for one in found] == [
        {"b": 0, "c": 1},
        {"b": 0, "c": 1, "d": 2, "q": 3},
        {"c": 1, "d": 2, "q": 3},
    ]
    assert [[*one.held_by] for one in found] == [["silo1"], ["silo0", "silo2"], ["silo1"]]
    digests = [one.digests(f"silo{silo}", SECRET) for silo, one in enumerate(found)]
    assert digests[0]["silo1"] == digests[1]["silo0"] != digests[1]["silo2"] == digests[2]["silo1"]


def test_a_list_of_samples_grows_and_known_pairs_are_not_sent_again(tmp_path):
    sets = [["a", "b", "c", "e"], ["b", "c", "d", "q"], ["c", "q", "x"]]
    parties = star(sets, 1)
    deliver(parties)
    for silo, listed in enumerate(lists_of(parties)):
        listed.write(tmp_path / f"{silo}.json")
    before = [SampleList.read(tmp_path / f"{silo}.json") for silo in range(3)]
    # One has a row that the others have had, and one has a new sample.
    grown = [[*sets[0], "d"], [*sets[1], "x"], sets[2]]
    known = [{int(name[-1]): ids for name, ids in one.shared().items()} for one in before]
    again = star(grown, 1, known=known)
    sent = deliver(again)
    blinded = {(sender, m.receiver): len(m.payload) for sender, m in sent if m.step == "blinded"}
    assert blinded == {(0, 1): 3, (1, 0): 3, (1, 2): 3, (2, 1): 1}
    numbers, total = plain_list(grown, [1])
    for silo, listed in enumerate(lists_of(again)):
        assert dict(zip(listed.ids, listed.numbers.tolist(), strict=True)) == numbers[silo]
        assert listed.total == total == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: p[:-1], "the places of samples that silo 1 sent must be 4 x 8 bytes"),
        (lambda p: p[[0, 2, 2, 2]], "the places of samples that silo 1 sent are damaged"),
        (set_row(1, 127), "the places of samples that silo 1 sent are damaged"),
    ],
)
def test_damaged_places_are_refused(change, text):
    with pytest.raises(AlignmentError, match=text):
        deliver(star([["b", "c", "d"]] * 3, 1), alter=altering(1, "numbered", change))


def test_a_silo_that_knows_no_sample_is_reported():
    parties = star([["x"], ["b"]], 1)
    deliver(parties)
    with pytest.raises(AlignmentError, match="silo 0 has none of the 1 sample that have a label: check that the id"):
        lists_of(parties)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[]", "is no list of samples, as tdcd align writes it for a hub"),
        ('{"total": 2, "ids": ["a", "a"], "numbers": [0, 1], "held_by": {}}', "an id or a number is there twice"),
        ('{"total": 2, "ids": ["a", "b"], "numbers": [1, 0], "held_by": {}}', "or they are not in order"),
        ('{"total": 2, "ids": ["a"], "numbers": [2], "held_by": {}}', "do not go together"),
        ('{"total": 2, "ids": ["a"], "numbers": [0.5], "held_by": {}}', "'numbers' must be whole numbers"),
        ('{"total": 2, "ids": ["a"], "numbers": [0], "held_by": {"b": "01"}}', "which silos have it"),
        ('{"total": 2, "ids": ["a"], "numbers": [0], "held_by": {"b": "x"}}', "must be a 0 or a 1 for every id"),
    ],
)
def test_a_damaged_list_of_samples_is_refused(tmp_path, content, text):
    (tmp_path / "list.json").write_text(content)
    with pytest.raises(TableError, match=text):
        SampleList.read(tmp_path / "list.json")


def test_common_ids_are_in_numeric_order_if_all_are_numbers():
    parties = silos([["10", "x", "9", "100"], ["100", "9", "10", "y"]])
    deliver(parties)
    assert [party.common for party in parties] == [["9", "10", "100"]] * 2
    parties = silos([["10", "x", "9"], ["x", "9", "10"]])
    deliver(parties)
    assert [party.common for party in parties] == [["10", "9", "x"]] * 2


def test_one_silo_alone_keeps_its_ids():
    (alone,) = silos([["b", "a"]])
    assert alone.start() == []
    assert alone.common == ["a", "b"]


def test_progress_rises_to_one():
    seen = []
    parties = [
        Alignment(0, 2, map(str, range(1500)), progress=seen.append),
        Alignment(1, 2, map(str, range(700))),
    ]
    deliver(parties)
    assert seen == sorted(seen)
    assert seen[0] < 0.5
    assert seen[-1] == 1.0


def test_no_unblinded_point_is_sent_and_no_point_in_two_runs():
    sets = [[str(number) for number in range(50)]] * 3
    runs = [deliver(silos(sets)) for _ in range(2)]
    rows = [{row.tobytes() for _, m in run if m.payload.shape[0] == 50 for row in m.payload} for run in runs]
    assert not rows[0] & {row.tobytes() for row in hash_to_points(sets[0])}
    assert not rows[0] & rows[1]


def test_two_silos_points_for_a_third_say_nothing_of_what_the_two_have_in_common():
    names = [str(number) for number in range(50)]
    sent = deliver(silos([names] * 3))
    seen = {(sender, m.step): {row.tobytes() for row in m.payload} for sender, m in sent if m.receiver == 2}
    assert not seen[0, "blinded"] & seen[1, "blinded"]
    assert not seen[0, "returned"] & seen[1, "returned"]


def test_the_order_of_a_set_is_shuffled():
    names = [str(number) for number in range(100)]
    sent = deliver(silos([names, names]))
    first, second = (next(m.payload for silo, m in sent if silo == owner and m.step == "returned") for owner in (0, 1))
    assert {row.tobytes() for row in first} == {row.tobytes() for row in second}
    assert not (first == second).all()


def test_messages_that_come_before_the_announcements_wait():
    parties = silos([["a", "b"], ["b", "c"], ["b"]])
    announced = [(sender, message) for sender, silo in enumerate(parties) for message in silo.start()]
    late = [(0, m) for sender, m in announced if sender == 0 and m.receiver == 2]
    blinded = []
    for sender, message in announced:
        if (sender, message) not in late:
            blinded += [
                (message.receiver, m) for m in parties[message.receiver].receive(sender, message.step, message.payload)
            ]
    (early,) = [m for sender, m in blinded if sender == 1 and m.receiver == 2]
    assert parties[2].receive(1, early.step, early.payload) == []
    (_, announcement) = late[0]
    steps = [(m.step, m.receiver) for m in parties[2].receive(0, announcement.step, announcement.payload)]
    assert steps == [("blinded", 0), ("blinded", 1), ("returned", 1)]


@pytest.mark.parametrize(
    ("sender", "step", "change", "text"),
    [
        (0, "blinded", set_row(1, 0), "the set of silo 0 that it sent is damaged: row 1 is no point"),
        (1, "blinded", set_row(2, 255), "the set of silo 1 that it sent is damaged: row 2 is no point"),
        (2, "returned", set_row(0, 255), r"the set of silo . that silo 2 returned is damaged: row 0 is no point"),
        (0, "returned", lambda p: p[:-1], r"the set of silo . that silo 0 returned must be 3 x 32 bytes, not uint8 of"),
        (2, "blinded", lambda p: p[:, :31], r"must be 3 x 32 bytes, not uint8 of shape \(3, 31\): it was cut short"),
        (
            2,
            "blinded",
            lambda p: p.astype(np.float32),
            "the set of silo 2 that it sent must be 3 x 32 bytes, not float32",
        ),
        (2, "blinded", lambda p: p[[0, 0, 1]], "the set of silo 2 that it sent holds the same id twice"),
        (2, "announced", lambda p: p[:, :8], "the announcement of silo 2 must be 1 x 56 bytes"),
        (2, "announced", set_row(0, 255), "silo 2 asks for an answer that is not known here"),
    ],
)
def test_a_damaged_message_is_refused_and_its_silo_named(sender, step, change, text):
    with pytest.raises(AlignmentError, match=text):
        deliver(silos([["a", "b", "c"]] * 3), alter=altering(sender, step, change))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((3, 2, "counts", SECRET), "silo 1 asks for counts and this silo for ids: choose one"),
        ((3, 4, "ids", SECRET), "silo 1 counts 4 silos and this silo 2"),
        ((3, 2, "ids", b"another"), "silo 1 has another secret: give all silos the same one"),
        ((0, 2, "ids", SECRET), "silo 1 announces 0 ids: there must be 1 to 10000000"),
        ((1 << 40, 2, "ids", SECRET), "silo 1 announces 1099511627776 ids: there must be 1 to 10000000"),
        ((3, 2, "ids", SECRET, ["a"]), "silo 1 knows 1 common id and this silo 0, or others: give all silos the same"),
    ],
)
def test_silos_that_were_set_up_differently_stop_before_any_id_travels(other, text):
    party = Alignment(0, 2, ["a"], SECRET)
    party.start()
    with pytest.raises(AlignmentError, match=text):
        party.receive(1, "announced", Announcement.of(*other).encode())


@pytest.mark.parametrize(("sender", "step"), [(0, "announced"), (3, "blinded"), (0, "returned"), (1, "gossip")])
def test_a_message_from_the_wrong_silo_is_refused(sender, step):
    party = Alignment(0, 3, ["a"])
    party.start()
    with pytest.raises(AlignmentError, match=f"silo {sender} sent '{step}', which silo 0 does not expect"):
        party.receive(sender, step, np.zeros((1, 32), np.uint8))


def test_an_answer_that_comes_twice_is_refused():
    parties = silos([["a"], ["a"]])
    (returned,) = [message for sender, message in deliver(parties) if (sender, message.step) == (1, "returned")]
    with pytest.raises(AlignmentError, match="silo 1 sent 'returned', which silo 0 does not expect from it or already"):
        parties[0].receive(1, returned.step, returned.payload)


@pytest.mark.parametrize("answer", ["ids", "counts"])
def test_a_silo_that_comes_back_has_the_ids_that_it_had_and_does_not_come_back_for_ever(answer):
    sets = [["a", "b", "c"], ["b", "c", "d"]]

    def back(parties, ids):
        other = silos([ids, ids], answer=answer)[1]
        for sent in other.start():
            assert parties[0].receive(1, sent.step, sent.payload) == []
        points = other._own.points()
        (returned,) = parties[0].receive(1, "blinded", points)
        assert not parties[0].done
        return other, parties[0].receive(1, "returned", other._own.blind(parties[0]._own.points())), returned

    parties = silos(sets, answer=answer)
    deliver(parties)
    for _ in range(MOST_COMPARISONS - 1):
        back(parties, sets[1])
        assert parties[0].counts == {1: 2}
    with pytest.raises(AlignmentError, match=f"silo 1 has sent its ids {MOST_COMPARISONS} times: start all silos"):
        back(parties, sets[1])
    parties = silos(sets, answer=answer)
    deliver(parties)
    with pytest.raises(AlignmentError, match="silo 1 came back with other ids than before: start all silos again"):
        back(parties, ["b", "d", "e"])


def test_own_ids_and_settings_are_checked():
    with pytest.raises(AlignmentError, match="silo 3 has 2 ids more than once: 'b', 'a'; keep one row of each id"):
        Alignment(3, 4, ["b", "a", "b", "c", "a"])
    with pytest.raises(AlignmentError, match="silo 1 has 0 ids: there must be 1 to 10000000"):
        Alignment(1, 2, [])
    with pytest.raises(ValueError, match="silo_index = 2: must be between 0 and 1"):
        Alignment(2, 2, ["a"])
    with pytest.raises(ValueError, match="answer = 'trust': must be one of ids, counts"):
        Alignment(0, 2, ["a"], answer="trust")
    with pytest.raises(AlignmentError, match="silo 1 no longer has 1 known id: 'b'; align anew without the former"):
        Alignment(1, 2, ["a"], known=["a", "b"])


def test_an_alignment_serves_once_and_says_what_is_missing():
    party = Alignment(0, 2, ["a"])
    party.start()
    with pytest.raises(RuntimeError, match=r"start\(\) was called before: make a new Alignment"):
        party.start()
    with pytest.raises(RuntimeError, match=r"the alignment is not done: messages of silos \[1\] have not arrived"):
        _ = party.common
