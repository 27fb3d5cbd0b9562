"""Links between continents, and links that carry little; ``slow_links.py`` measures more of them."""

import socket

import lab
import pytest
import slow_links
from processes import reference
from slow_link import SlowLink

from support.ports import free_address
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.process.endpoint import Backoff
from tdcd.runtime.transport.transport import Joined, Received
from tdcd.runtime.transport.zenoh_settings import Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

HUB, NORTH = "hub.bank", "client.bank.north"
LONG = 90.0
"""Seconds after which something counts as not happening, on a busy machine too."""


def tls_in(folder, party):
    return Tls(folder / "ca.pem", folder / f"{party}.pem", folder / f"{party}.key")


@pytest.fixture
def join(tmp_path):
    """A function that makes a hub and a client with a slow link between them."""
    throwaway(tmp_path / "certs", {HUB: ["127.0.0.1"]}, [NORTH])
    made = []

    def tls(party):
        return tls_in(tmp_path / "certs", party)

    def pair(**slow):
        address = free_address()
        made.append(SlowLink(address, **slow))
        made.append(ZenohTransport(HUB, [NORTH], addresses={}, listen=address, tls=tls(HUB)))
        made.append(ZenohTransport(NORTH, [HUB], addresses={HUB: made[0].address}, tls=tls(NORTH)))
        assert made[1].receive(LONG) == Joined(NORTH)
        assert made[2].receive(LONG) == Joined(HUB)
        return made

    yield pair
    for one in reversed(made):
        one.close()


@pytest.mark.slow
def test_parties_a_second_apart_find_each_other(join):
    _, hub, north = join(delay_s=0.5)
    hub.send(NORTH, b"question")
    assert north.receive(LONG) == Received(HUB, b"question")
    north.send(HUB, b"answer")
    assert hub.receive(LONG) == Received(NORTH, b"answer")


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "size"), [(50_000, 800_000), (10_000, 100_000)])
def test_a_message_takes_longer_than_a_link_may_be_silent(join, rate, size):
    _, hub, north = join(bytes_per_s=rate)
    data = bytes(range(250)) * (size // 250)
    north.send(HUB, data)
    seen, news = set(), None
    while news is None and len(seen) < size:
        seen.add(hub.arriving[NORTH])
        news = hub.receive(0.2)
    assert news == Received(NORTH, data)
    assert len(seen) > 2
    assert hub.arriving[NORTH] == 0


@pytest.mark.slow
def test_a_party_can_leave_while_it_dials_a_party_that_does_not_answer(tmp_path):
    throwaway(tmp_path / "certs", {HUB: ["127.0.0.1"]}, [NORTH])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with ZenohTransport(NORTH, [HUB], addresses={HUB: address}, tls=tls_in(tmp_path / "certs", NORTH)) as north:
            connection, _ = silent.accept()
            assert north.receive(0) is None
        connection.close()


@pytest.mark.slow
def test_a_federation_of_far_parties_ends_with_the_same_history(tmp_path):
    sections = {"rounds": 2, "evaluate": {"every": 1}}
    expected = reference(tmp_path / "near", **sections)
    found = slow_links.measure(tmp_path / "far", 2 * LONG, delay_s=0.4, **sections)
    assert found.history == expected


def test_reminders_wait_twice_as_long_as_answers_take():
    now = 0.0
    patience = Backoff(2.0, 30.0, lambda: now)

    def wait():
        nonlocal now
        since = now
        while not patience.is_over():
            now += 0.5
        return now - since

    patience.restart(is_next_stage=True)
    assert wait() == 2.0
    assert wait() == 4.0
    now += 4.0
    patience.restart(is_next_stage=True)
    assert wait() == 20.0, "the stage before took ten seconds"
    for _ in range(30):
        now += 0.1
        patience.restart(is_next_stage=True)
    assert wait() == 2.0, "that was long ago"
    patience.disturb()
    now += 600.0
    patience.restart(is_next_stage=True)
    assert wait() == 2.0, "somebody was away, which is not the links' fault"
    now += 600.0
    patience.restart(is_next_stage=True)
    assert wait() == 30.0


def test_no_party_is_reminded_while_an_answer_arrives(tmp_path):
    config, data = lab.prepared()
    parties = lab.Lab(config, data, tmp_path, seed=0).begin()
    hub, client = parties.drivers["hub.lab"], "client.lab.north"
    parties.until(lambda: client in hub.hub.missing() and hub.hub.round == 1)
    del parties.drivers[client]
    parties.until(lambda: [*hub.hub.missing()] == [client] and not parties.queues["client.lab.south", "hub.lab"])

    def sent(arriving):
        before = hub.endpoint.wire_bytes
        for _ in range(100):
            parties.now += 1.0
            hub.endpoint.transport.arriving[client] += arriving
            hub.step()
        return hub.endpoint.wire_bytes - before

    assert sent(arriving=1000) == 0
    assert sent(arriving=0) > 0
    hub.folder.close()
    parties.drivers["hub.clinic"].folder.close()
