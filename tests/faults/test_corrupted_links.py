"""Bits flipped on the wire, again and again: nobody's process dies, and the history stays what it was."""

import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import scenarios
from processes import Processes, reference
from proxy import Proxy

from support.ports import free_address
from tdcd.runtime.certificates.issue import throwaway

HUB, CLIENTS = "hub.bank", ["client.bank.a", "client.bank.b", "client.bank.c"]
ENOUGH = 150
"""Corrupted chunks: without precautions every 20th killed a process."""

FLOOD = """
import sys, time
from pathlib import Path
from tdcd.runtime.transport.transport import Received
from tdcd.runtime.transport.zenoh_transport import Tls, ZenohTransport
party, address, folder, *peers = sys.argv[1:]
tls = Tls(*(Path(folder) / name for name in ("ca.pem", f"{party}.pem", f"{party}.key")))
where = {"listen": address, "addresses": {}} if party == "hub.bank" else {"addresses": {"hub.bank": address}}
with ZenohTransport(party, peers, tls=tls, **where) as end:
    while True:
        for peer in peers:
            end.send(peer, bytes(20_000))
        while event := end.receive(0.01):
            if isinstance(event, Received):
                print(event.sender, flush=True)
"""

THREADS = """
import os, sys
from pathlib import Path
from tdcd.runtime.transport.zenoh_transport import ZenohTransport
# As in a copy of a process that was imported with another environment.
os.environ["ZENOH_RUNTIME"] = "(rx: (worker_threads: 2))"
hub, client, address = sys.argv[1:]
with (
    ZenohTransport(hub, [client], addresses={}, listen=address, tls=None),
    ZenohTransport(client, [hub], addresses={hub: address}, tls=None) as end,
):
    assert end.receive(60)
    print(*(name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")))
"""


def test_one_thread_reads_and_writes_links_whatever_the_environment_says():
    found = subprocess.run(
        [sys.executable, "-c", THREADS, HUB, CLIENTS[0], free_address()],
        capture_output=True,
        text=True,
        check=True,
    )
    # Zenoh names its threads after what they are there for.
    assert {name.partition("-")[0] for name in found.stdout.split()} & {"rx", "tx"} == {"rx"}


def test_no_process_dies_of_corrupted_bytes(tmp_path):
    throwaway(tmp_path / "certs", {HUB: ["127.0.0.1"]}, CLIENTS)
    address = free_address()
    proxy = Proxy(address)
    peers = {HUB: CLIENTS, **{client: [HUB] for client in CLIENTS}}
    with ExitStack() as stack:
        stack.callback(proxy.close)
        children = {}
        for party, of_party in peers.items():
            where = address if party == HUB else proxy.address
            command = [sys.executable, "-c", FLOOD, party, where, str(tmp_path / "certs"), *of_party]
            with (tmp_path / party).open("wb") as heard:
                children[party] = subprocess.Popen(command, stdout=heard)
            stack.callback(children[party].wait)
            stack.callback(children[party].kill)

        def until(condition):
            end = time.monotonic() + 300
            while not condition():
                assert {party: child.poll() for party, child in children.items()} == dict.fromkeys(peers), (
                    proxy.corrupted
                )
                assert time.monotonic() < end, f"{proxy.corrupted} corrupted chunks"
                time.sleep(0.05)

        def everybody_hears_everybody():
            begun = {party: (tmp_path / party).stat().st_size for party in peers}

            def heard(party):
                return {*(tmp_path / party).read_text()[begun[party] :].split()}

            return lambda: all(heard(party) >= {*peers[party]} for party in peers)

        until(everybody_hears_everybody())
        proxy.corruption = 0.05
        until(lambda: proxy.corrupted >= ENOUGH)
        proxy.heal()
        until(everybody_hears_everybody())


@pytest.mark.slow
def test_a_run_over_corrupted_links_has_the_history_of_a_quiet_one(tmp_path):
    keys = {"rounds": 200, "evaluate": {"every": 10}}
    expected = reference(tmp_path / "quiet", **keys)
    with Processes(tmp_path / "rough", everywhere=True, **keys) as parties:
        parties.start_all()
        parties.until(lambda: min(parties.rounds()) >= 1, "the first round")
        scenarios.corrupted_links(parties, 40)
        parties.check(expected)
        parties.until(lambda: parties.is_over, "the end")
        assert not parties.kills
        assert all(history == expected for history in parties.histories())
