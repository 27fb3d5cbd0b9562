"""A hub's port under attack, by real sockets: strangers are limited and timed out, and the hub keeps its own files."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import zenoh
from test_zenoh_transport import intruder

from support.ports import free_address
from support.transport_parties import HUB, HUBS, NORTH, SHOP, SHOP_NORTH, SOON, SOUTH, take, tls_of
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.transport.guard import HANDSHAKES, LINKS, PLACES, files_for_connections
from tdcd.runtime.transport.transport import Joined, Left, Received
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

TLS_BEGINS = b"\x16\x03\x01\x40\x00\x01"
"""Of a handshake that goes no further."""
FEW_FILES = 128
CLIENTS = [NORTH, SOUTH]

HUB_WITH_FEW_FILES = f"""
import resource, sys, tempfile
from contextlib import ExitStack
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW_FILES}, {FEW_FILES}))
from tdcd.runtime.transport.transport import Received
from tdcd.runtime.transport.zenoh_transport import Tls, ZenohTransport
address, folder = sys.argv[1], Path(sys.argv[2])
tls = Tls(folder / "ca.pem", folder / "hub.bank.pem", folder / "hub.bank.key")
clients = ["client.bank.north", "client.bank.south"]
with ZenohTransport("hub.bank", clients, addresses={{}}, listen=address, tls=tls) as end:
    print("listening", flush=True)
    while True:
        event = end.receive(None)
        if isinstance(event, Received):
            # As many files of its own as a hub ever needs at a time.
            with ExitStack() as files:
                for _ in range(40):
                    files.enter_context(tempfile.TemporaryFile())
            end.send(event.sender, event.data)
"""


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certs"
    throwaway(folder, {hub: ["127.0.0.1", "::1"] for hub in HUBS}, [NORTH, SOUTH, SHOP_NORTH])
    return folder


def hub_at(address, certs, **options):
    return ZenohTransport(HUB, CLIENTS, addresses={}, listen=address, tls=tls_of(certs, HUB), **options)


def client_at(address, certs, party=NORTH, **options):
    return ZenohTransport(party, [HUB], addresses={HUB: address}, tls=tls_of(certs, party), **options)


def dial(address, source=None):
    host, port = address.rsplit(":", 1)
    bound = None if source is None else (source, 0)
    return socket.create_connection((host.strip("[]"), int(port)), SOON, bound)


def is_closed(connection):
    """Wait until the other end closes a connection; whether it does."""
    connection.settimeout(SOON)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@contextmanager
def hub_with_few_files(certs):
    address = free_address()
    command = [sys.executable, "-c", HUB_WITH_FEW_FILES, address, str(certs)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "listening\n"
        yield address
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("beginning", [b"", TLS_BEGINS])
def test_more_idle_connections_than_files_take_neither_files_nor_the_port(certs, beginning):
    """Open, then closed by the attacker, then open again: who has a certificate is heard all the time."""
    with hub_with_few_files(certs) as address, client_at(address, certs) as north:
        assert north.receive(SOON) == Joined(HUB)
        for end in (True, False):
            with ExitStack() as idle:
                for _ in range(3 * FEW_FILES):
                    connection = idle.enter_context(dial(address))
                    connection.sendall(beginning)
                north.send(HUB, b"files")
                assert north.receive(SOON) == Received(HUB, b"files")
                with client_at(address, certs, SOUTH) as south:
                    assert south.receive(SOON) == Joined(HUB)
                    south.send(HUB, b"more files")
                    assert south.receive(SOON) == Received(HUB, b"more files")
            north.send(HUB, b"%d" % end)
            assert north.receive(SOON) == Received(HUB, b"%d" % end)


def test_who_does_not_become_a_link_in_time_is_closed(certs):
    address, told = free_address(), []
    with hub_at(address, certs, lease_s=2.0, report=told.append) as hub, client_at(address, certs) as north:
        assert (north.receive(SOON), hub.receive(SOON)) == (Joined(HUB), Joined(NORTH))
        with closing(dial(address)) as silent, closing(dial(address)) as half, closing(dial(address)) as other:
            half.sendall(TLS_BEGINS)
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert all(map(is_closed, (other, silent, half)))
        # What is a link stays one.
        north.send(HUB, b"still here")
        assert hub.receive(SOON) == Received(NORTH, b"still here")
    assert told[0].startswith("1 connections were turned away so far, the last one of 127.0.0.1: they were not TLS")


def test_an_address_that_floods_crowds_out_itself_alone(certs):
    address, many = free_address(), PLACES + len(CLIENTS)
    with hub_at(address, certs, lease_s=60.0) as hub, ExitStack() as opened:
        if sys.platform != "linux":
            pytest.skip("only Linux has more than one loopback address")
        single = opened.enter_context(closing(dial(address, "127.0.0.3")))
        flood = [opened.enter_context(closing(dial(address, "127.0.0.2"))) for _ in range(many + 5)]
        assert all(is_closed(one) for one in flood[:6])
        with client_at(address, certs) as north:
            assert (north.receive(SOON), hub.receive(SOON)) == (Joined(HUB), Joined(NORTH))
        for one in (single, flood[-1]):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_a_flood_of_handshakes_that_fail_keeps_no_party_out_for_long(certs):
    address = free_address()
    with hub_at(address, certs) as hub, ExitStack() as opened:
        for _ in range(4 * (HANDSHAKES + PLACES)):
            connection = opened.enter_context(closing(dial(address)))
            connection.sendall(TLS_BEGINS)
        with client_at(address, certs) as north:
            assert (north.receive(SOON), hub.receive(SOON)) == (Joined(HUB), Joined(NORTH))


def test_a_party_has_a_few_links_at_a_time(certs):
    address = free_address()
    with hub_at(address, certs) as hub, ExitStack() as opened:
        for _ in range(3 * LINKS):
            # Links beyond those few are closed, some while they are made.
            with suppress(zenoh.ZError):
                opened.enter_context(intruder(tls_of(certs, SOUTH), dial=address))
        deadline = time.monotonic() + SOON
        while len([link for link in hub._session.info.links() if link.auth_identifier == SOUTH]) > LINKS:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with client_at(address, certs) as north:
            assert north.receive(SOON) == Joined(HUB)


def test_what_was_sent_before_the_end_arrives(certs):
    address, data = free_address(), os.urandom(3_000_000)
    with client_at(address, certs) as north:
        with hub_at(address, certs) as hub:
            assert (north.receive(SOON), hub.receive(SOON)) == (Joined(HUB), Joined(NORTH))
            hub.send(NORTH, data)
        assert take(north, 2) == [Received(HUB, data), Left(HUB)]
        # The port is free at once.
        with hub_at(address, certs) as hub:
            assert hub.receive(SOON) == Joined(NORTH)


def test_a_process_that_may_open_too_few_files_is_refused():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90)); "
        "from tdcd.runtime.transport.guard import files_for_connections; files_for_connections(10, 50)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "this process may open 90 files at a time, and with 10 peers a hub needs" in done.stderr
    assert "raise the limit (ulimit -n" in done.stderr
    assert files_for_connections(2, 50) == 50 + 3 * LINKS * 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_an_ipv6_address_is_dialled_and_listened_on(certs):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            port = probe.getsockname()[1]
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    address, other = f"[::1]:{port}", free_address()
    addresses = {HUB: address, SHOP: other}
    with (
        ZenohTransport(HUB, [NORTH, SHOP], addresses=addresses, listen=address, tls=tls_of(certs, HUB)) as hub,
        ZenohTransport(SHOP, [HUB], addresses=addresses, listen=other, tls=tls_of(certs, SHOP)) as shop,
        client_at(address, certs) as north,
    ):
        assert {hub.receive(SOON), hub.receive(SOON)} == {Joined(NORTH), Joined(SHOP)}
        assert (north.receive(SOON), shop.receive(SOON)) == (Joined(HUB), Joined(HUB))
        north.send(HUB, b"hello")
        assert hub.receive(SOON) == Received(NORTH, b"hello")
