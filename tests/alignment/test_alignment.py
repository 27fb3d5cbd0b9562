"""The protocol against plain set intersection, and every message that must be refused."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.alignment import METHODS, Alignment, AlignmentError
from tdcd.alignment.messages import Announcement
from tdcd.alignment.ristretto import hash_to_points

pytestmark = pytest.mark.quick

SECRET = bytes(range(32))


def silos(sets, method, secret=SECRET, **options):
    return [Alignment(index, len(sets), ids, method, secret, **options) for index, ids in enumerate(sets)]


def deliver(parties, rng=None, alter=lambda sender, message: message):
    """Run to the end, messages in an order drawn from ``rng``; everything that was sent, as (sender, message)."""
    rng = rng or random.Random(0)
    waiting = [(party, message) for party, silo in enumerate(parties) for message in silo.start()]
    sent = []
    while waiting:
        sender, message = waiting.pop(rng.randrange(len(waiting)))
        sent.append((sender, message))
        message = alter(sender, message)
        replies = parties[message.receiver].receive(sender, message.kind, message.payload)
        waiting += [(message.receiver, reply) for reply in replies]
    return sent


def altering(kind, change):
    """A network that changes the payload of one kind of message."""

    def alter(sender, message):
        payload = change(message.payload.copy()) if message.kind == kind else message.payload
        return type(message)(message.receiver, message.kind, payload)

    return alter


id_sets = st.lists(
    st.sets(st.text(max_size=3) | st.sampled_from("abc"), min_size=1, max_size=8), min_size=2, max_size=4
)


@pytest.mark.parametrize("method", METHODS)
@given(sets=id_sets, rng=st.randoms(use_true_random=False))
@num_examples(40)
def test_every_silo_finds_the_plain_intersection_whatever_the_order_of_messages(method, sets, rng):
    parties = silos(sets, method, workers=1)
    deliver(parties, rng)
    assert all(party.done for party in parties)
    found = [party.common for party in parties]
    assert set(found[0]) == set.intersection(*sets)
    assert all(common == found[0] for common in found)


@pytest.mark.parametrize("method", METHODS)
def test_common_ids_are_in_numeric_order_if_all_are_numbers(method):
    parties = silos([["10", "x", "9", "100"], ["100", "9", "10", "y"]], method)
    deliver(parties)
    assert [party.common for party in parties] == [["9", "10", "100"]] * 2
    parties = silos([["10", "x", "9"], ["x", "9", "10"]], method)
    deliver(parties)
    assert [party.common for party in parties] == [["10", "9", "x"]] * 2


@pytest.mark.parametrize("method", METHODS)
def test_one_silo_alone_keeps_its_ids(method):
    (alone,) = silos([["b", "a"]], method)
    assert alone.start() == []
    assert alone.common == ["a", "b"]


def test_progress_rises_to_one():
    seen = []
    parties = [
        Alignment(0, 2, map(str, range(1500)), "psi", progress=seen.append),
        Alignment(1, 2, map(str, range(700)), "psi"),
    ]
    deliver(parties)
    assert seen == sorted(seen)
    assert seen[0] < 0.5
    assert seen[-1] == 1.0
    digests = []
    deliver(silos([["a"], ["a"]], "digests", progress=digests.append))
    assert digests == [1.0, 1.0]


def test_psi_sends_no_unblinded_point_and_no_point_in_two_runs():
    sets = [[str(number) for number in range(50)]] * 3
    runs = [deliver(silos(sets, "psi")) for _ in range(2)]
    rows = [{row.tobytes() for _, m in run if m.payload.shape[0] == 50 for row in m.payload} for run in runs]
    assert not rows[0] & {row.tobytes() for row in hash_to_points(sets[0])}
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_a_set_is_shuffled(method):
    names = [str(number) for number in range(100)]
    parties = silos([names, names], method)
    sent = deliver(parties)
    one, other = (next(m.payload for _, m in sent if m.kind == f"published-{owner}") for owner in (0, 1))
    assert {row.tobytes() for row in one} == {row.tobytes() for row in other}
    assert not (one == other).all()


def test_messages_that_come_before_the_announcements_wait():
    parties = silos([["a", "b"], ["b", "c"], ["b"]], "psi")
    announced = [(sender, message) for sender, silo in enumerate(parties) for message in silo.start()]
    late = [(0, m) for sender, m in announced if sender == 0 and m.receiver == 2]
    blinded = []
    for sender, message in announced:
        if (sender, message) not in late:
            blinded += [
                (message.receiver, m) for m in parties[message.receiver].receive(sender, message.kind, message.payload)
            ]
    (early,) = [m for sender, m in blinded if sender == 1]
    assert parties[2].receive(1, early.kind, early.payload) == []
    (_, announcement) = late[0]
    kinds = [m.kind for m in parties[2].receive(0, announcement.kind, announcement.payload)]
    assert kinds == ["blinded-2", "blinded-1"]


def set_row(row, value):
    def change(payload):
        payload[row] = value
        return payload

    return change


@pytest.mark.parametrize(
    ("method", "kind", "change", "text"),
    [
        ("psi", "blinded-0", set_row(1, 0), "the set of silo 0 that silo 0 sent is damaged: row 1 is no point"),
        ("psi", "blinded-1", set_row(2, 255), "the set of silo 1 that silo 1 sent is damaged: row 2 is no point"),
        ("psi", "published-0", set_row(0, 255), "the set of silo 0 that silo 2 sent is damaged: row 0 is no point"),
        (
            "psi",
            "published-1",
            lambda p: p[:-1],
            "the set of silo 1 that silo 0 sent must be 3 x 32 bytes, not uint8 of",
        ),
        (
            "psi",
            "blinded-2",
            lambda p: p[:, :31],
            r"must be 3 x 32 bytes, not uint8 of shape \(3, 31\): it was cut short",
        ),
        (
            "psi",
            "blinded-2",
            lambda p: p.astype(np.float32),
            "the set of silo 2 that silo 2 sent must be 3 x 32 bytes, not float32",
        ),
        ("psi", "published-2", lambda p: p[[0, 0, 1]], "the set of silo 2 that silo 1 sent holds the same id twice"),
        (
            "digests",
            "published-1",
            lambda p: p[[0, 0, 1]],
            "the set of silo 1 that silo 1 sent holds the same id twice",
        ),
        (
            "digests",
            "published-1",
            lambda p: np.vstack([p, p]),
            r"silo 1 that silo 1 sent must be 3 x 16 bytes, not uint8 of shape \(6, 16\)",
        ),
        ("digests", "announced-2", lambda p: p[:, :8], "the announcement of silo 2 must be 1 x 32 bytes"),
        ("digests", "announced-2", set_row(0, 255), "silo 2 announces a method that is not known here"),
    ],
)
def test_a_damaged_message_is_refused_and_its_silo_named(method, kind, change, text):
    with pytest.raises(AlignmentError, match=text):
        deliver(silos([["a", "b", "c"]] * 3, method), alter=altering(kind, change))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((3, 2, "digests", SECRET), "silo 1 aligns by digests and this silo by psi: set the same method"),
        ((3, 4, "psi", SECRET), "silo 1 counts 4 silos and this silo 2"),
        ((3, 2, "psi", b"another"), "silo 1 has another secret: give all silos the same one"),
        ((0, 2, "psi", SECRET), "silo 1 announces 0 ids: there must be 1 to 10000000"),
        ((1 << 40, 2, "psi", SECRET), "silo 1 announces 1099511627776 ids: there must be 1 to 10000000"),
    ],
)
def test_silos_that_were_set_up_differently_stop_before_any_id_travels(other, text):
    party = Alignment(0, 2, ["a"], "psi", SECRET)
    party.start()
    with pytest.raises(AlignmentError, match=text):
        party.receive(1, "announced-1", Announcement.of(*other).encode())


@pytest.mark.parametrize(
    ("sender", "kind"),
    [(2, "announced-1"), (1, "announced-0"), (1, "blinded-2"), (2, "published-2"), (0, "published-1"), (1, "gossip")],
)
def test_a_message_from_the_wrong_silo_is_refused(sender, kind):
    party = Alignment(0, 3, ["a"], "psi")
    party.start()
    with pytest.raises(AlignmentError, match=f"silo {sender} sent '{kind}', which silo 0 does not expect"):
        party.receive(sender, kind, np.zeros((1, 32), np.uint8))


def test_a_message_that_comes_twice_is_refused():
    party, other = silos([["a"], ["a"]], "digests")
    (message,) = other.start()
    party.receive(1, message.kind, message.payload)
    with pytest.raises(
        AlignmentError, match="silo 1 sent 'announced-1', which silo 0 does not expect from it or already"
    ):
        party.receive(1, message.kind, message.payload)


def test_own_ids_and_settings_are_checked():
    with pytest.raises(AlignmentError, match="silo 3 has 2 ids more than once: 'b', 'a'; keep one row of each id"):
        Alignment(3, 4, ["b", "a", "b", "c", "a"], "psi")
    with pytest.raises(AlignmentError, match="silo 1 has 0 ids: there must be 1 to 10000000"):
        Alignment(1, 2, [], "psi")
    with pytest.raises(ValueError, match="silo_index = 2: must be between 0 and 1"):
        Alignment(2, 2, ["a"], "psi")
    with pytest.raises(ValueError, match="method = 'trust': must be one of digests, psi"):
        Alignment(0, 2, ["a"], "trust")
    with pytest.raises(ValueError, match="digests need a secret of at least 16 random bytes, not 5"):
        Alignment(0, 2, ["a"], "digests", b"short")


def test_an_alignment_serves_once_and_says_what_is_missing():
    party = Alignment(0, 2, ["a"], "psi")
    party.start()
    with pytest.raises(RuntimeError, match=r"start\(\) was called before: make a new Alignment"):
        party.start()
    with pytest.raises(RuntimeError, match=r"the alignment is not done: the sets of silos \[0, 1\] have not arrived"):
        _ = party.common
