"""What every transport promises, over each of them."""

import random
import threading
import time

import pytest

from support.transport_parties import (
    HUB,
    HUBS,
    MAX_BYTES,
    MILL,
    NORTH,
    PEERS,
    SHOP,
    SHOP_NORTH,
    SOON,
    SOUTH,
    Parties,
    ZenohNetwork,
    take,
)
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.transport.transport import UNREAD_EVENTS, Joined, Left, LocalNetwork, Mailbox, Received


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certs"
    throwaway(folder, {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH, SHOP_NORTH])
    return folder


@pytest.fixture(params=["local", "tls", "clear"])
def parties(request, certs):
    networks = {"local": LocalNetwork, "tls": lambda: ZenohNetwork(certs), "clear": lambda: ZenohNetwork(None)}
    with Parties(networks[request.param]()) as parties:
        yield parties


def test_messages_go_both_ways_between_a_hub_and_its_client_and_between_hubs(parties):
    hub, shop, north = parties.linked(HUB, SHOP, NORTH)
    north.send(HUB, b"up")
    assert hub.receive(SOON) == Received(NORTH, b"up")
    hub.send(NORTH, b"down")
    hub.send(SHOP, b"across")
    assert north.receive(SOON) == Received(HUB, b"down")
    assert shop.receive(SOON) == Received(HUB, b"across")
    shop.send(HUB, b"back")
    assert hub.receive(SOON) == Received(SHOP, b"back")
    assert hub.sent_bytes == {NORTH: 4, SHOP: 6}
    assert north.sent_bytes == {HUB: 2}


def test_messages_of_every_size_arrive_whole_and_in_order(parties):
    hub, north = parties.linked(HUB, NORTH)
    generator = random.Random(0)
    sent = [
        generator.randbytes(size) for size in (0, 1, 1000, 65_534, 65_535, 65_536, 1_000_000, 3, 5_000_000, MAX_BYTES)
    ]
    for data in sent:
        north.send(HUB, data)
    assert take(hub, len(sent)) == [Received(NORTH, data) for data in sent]
    assert hub.dropped == {}


def test_a_thousand_messages_from_each_of_two_senders_keep_their_order(parties):
    hub, *clients = parties.linked(HUB, NORTH, SOUTH)

    def send(client):
        for number in range(1000):
            client.send(HUB, number.to_bytes(2))

    threads = [threading.Thread(target=send, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    got = take(hub, 2000)
    for thread in threads:
        thread.join()
    for client in clients:
        assert [int.from_bytes(data) for sender, data in got if sender == client.party] == list(range(1000))


def test_what_is_sent_to_an_absent_peer_is_lost_and_not_counted(parties):
    hub, north = parties.linked(HUB, NORTH)
    hub.send(SOUTH, b"lost")
    (south,) = parties.join(SOUTH)
    assert hub.receive(SOON) == Joined(SOUTH)
    assert south.receive(SOON) == Joined(HUB)
    hub.send(SOUTH, b"found")
    assert south.receive(SOON) == Received(HUB, b"found")
    assert hub.sent_bytes == {SOUTH: 5}
    assert north.receive(0) is None


def test_last_messages_come_before_the_news_that_the_sender_left(parties):
    hub, north = parties.linked(HUB, NORTH)
    north.send(HUB, bytes(MAX_BYTES))
    north.send(HUB, b"goodbye")
    north.close()
    assert take(hub, 3) == [Received(NORTH, bytes(MAX_BYTES)), Received(NORTH, b"goodbye"), Left(NORTH)]


def test_a_party_that_restarts_joins_again(parties):
    parties.linked(HUB, SHOP, NORTH)
    for party, others in ((NORTH, [HUB]), (HUB, [NORTH, SHOP]), (SHOP, [HUB])):
        parties.ends[party].close()
        assert [parties.ends[other].receive(SOON) for other in others] == [Left(party)] * len(others)
        (again,) = parties.join(party)
        assert set(take(again, len(others))) == {Joined(other) for other in others}
        for other in others:
            assert parties.ends[other].receive(SOON) == Joined(party)
            parties.ends[other].send(party, b"you")
            assert again.receive(SOON) == Received(other, b"you")
            again.send(other, b"too")
            assert parties.ends[other].receive(SOON) == Received(party, b"too")


@pytest.mark.parametrize("seed", range(3))
def test_parties_find_each_other_in_any_order_of_starting(parties, seed):
    names = [HUB, SHOP, MILL, NORTH, SHOP_NORTH]
    random.Random(seed).shuffle(names)
    for end in parties.linked(*names):
        for peer in PEERS[end.party]:
            if peer in names:
                end.send(peer, end.party.encode())
    for end in parties.ends.values():
        present = [peer for peer in PEERS[end.party] if peer in names]
        assert sorted(take(end, len(present))) == sorted(Received(peer, peer.encode()) for peer in present)


def test_a_slow_reader_loses_nothing(parties):
    hub, north = parties.linked(HUB, NORTH)
    for number in range(20):
        hub.send(NORTH, bytes([number]) * 1_000_000)
    time.sleep(0.3)
    assert take(north, 20) == [Received(HUB, bytes([number]) * 1_000_000) for number in range(20)]


def test_a_peer_that_floods_loses_messages_and_harms_no_other(parties):
    hub, north, south = parties.linked(HUB, NORTH, SOUTH)
    for _ in range(UNREAD_EVENTS + 50):
        north.send(HUB, b"flood")
    for _ in range(6):
        south.send(HUB, bytes(MAX_BYTES))
    deadline = time.monotonic() + SOON
    while hub.dropped != {NORTH: 50, SOUTH: 2} and time.monotonic() < deadline:
        time.sleep(0.01)
    assert hub.dropped == {NORTH: 50, SOUTH: 2}
    got = take(hub, UNREAD_EVENTS + 4)
    assert [len(data) for sender, data in got if sender == SOUTH] == [MAX_BYTES] * 4
    assert hub.receive(0) is None
    north.send(HUB, b"calm again")
    assert hub.receive(SOON) == Received(NORTH, b"calm again")


def test_waiting_ends_at_the_timeout(parties):
    (hub,) = parties.join(HUB)
    start = time.monotonic()
    assert hub.receive(0) is None
    assert hub.receive(0.2) is None
    assert time.monotonic() - start >= 0.2


def test_closing_is_final_and_wakes_a_waiting_reader(parties):
    hub, _ = parties.linked(HUB, NORTH)
    threading.Timer(0.1, hub.close).start()
    with pytest.raises(RuntimeError, match=r"^the transport of hub\.bank is closed$"):
        hub.receive(None)
    hub.close()
    with pytest.raises(RuntimeError, match="is closed"):
        hub.send(NORTH, b"")
    with pytest.raises(RuntimeError, match="is closed"):
        hub.receive(0)


def test_wrong_receivers_sizes_and_peers_are_errors(parties):
    hub, north = parties.linked(HUB, NORTH)
    with pytest.raises(ValueError, match=r"^client\.bank\.north cannot send to 'hub\.shop': its peers are hub\.bank$"):
        north.send(SHOP, b"")
    with pytest.raises(ValueError, match=r"hub\.bank cannot send 6000001 bytes to client\.bank\.north: .* 6000000;"):
        hub.send(NORTH, bytes(MAX_BYTES + 1))
    with parties.network.join(SHOP, [MILL]) as shop:
        assert shop.receive(0) is None
    for party, peer in ((NORTH, SHOP), (NORTH, SOUTH), (HUB, HUB), (HUB, SHOP_NORTH), (HUB, "shop")):
        with pytest.raises(ValueError, match=f"^'{party}' cannot have the peer '{peer}': the peers of client.SILO"):
            parties.network.join(party, [peer])


def test_a_party_that_does_not_name_the_other_is_not_linked_to_it(parties):
    (north,) = parties.join(NORTH)
    with parties.network.join(HUB, [SOUTH]) as hub:
        assert north.receive(0.5) is None
        north.send(HUB, b"anyone?")
        assert hub.receive(0.2) is None
    assert north.sent_bytes == {}


def test_pieces_are_put_together_and_what_gets_too_large_is_dropped_once():
    mailbox = Mailbox(HUB, [NORTH, SOUTH], max_message_bytes=6)
    for piece in (b"ab", b"", b"cd"):
        mailbox.put_piece(NORTH, piece, is_last=False)
    mailbox.put_piece(SOUTH, b"other", is_last=True)
    assert mailbox.arriving == {NORTH: 4, SOUTH: 0}
    mailbox.put_piece(NORTH, b"ef", is_last=True)
    for _ in range(100):
        mailbox.put_piece(NORTH, b"much", is_last=False)
    assert mailbox.arriving[NORTH] == 400
    mailbox.put_piece(NORTH, b"", is_last=True)
    mailbox.put_piece(NORTH, b"lost", is_last=False)
    mailbox.put(Left(NORTH))
    mailbox.put_piece(NORTH, b"new", is_last=True)
    expected = [Received(SOUTH, b"other"), Received(NORTH, b"abcdef"), Left(NORTH), Received(NORTH, b"new")]
    assert [mailbox.get(0) for _ in expected] == expected
    assert mailbox.get(0) is None
    assert mailbox.dropped == {NORTH: 1}
