"""Bits flipped on the wire, again and again: nobody's process dies, and the history stays what it was."""

import socket
import subprocess
import sys
import time
from contextlib import ExitStack

from proxy import Proxy

from tdcd.runtime.certificates import throwaway

HUB, CLIENTS = "hub.bank", ["client.bank.a", "client.bank.b", "client.bank.c"]
ENOUGH = 150
"""Corrupted chunks: without precautions every 20th killed a process."""

FLOOD = """
import sys, time
from pathlib import Path
from tdcd.runtime.transport import Received
from tdcd.runtime.zenoh_transport import Tls, ZenohTransport
party, address, folder, *peers = sys.argv[1:]
tls = Tls(*(Path(folder) / name for name in ("ca.pem", f"{party}.pem", f"{party}.key")))
where = {"listen": address, "addresses": {}} if party == "hub.bank" else {"addresses": {"hub.bank": address}}
with ZenohTransport(party, peers, tls=tls, **where) as end:
    while True:
        for peer in peers:
            end.send(peer, bytes(20_000))
        while event := end.receive(0.001):
            if isinstance(event, Received):
                print(event.sender, flush=True)
"""


def test_no_process_dies_of_corrupted_bytes(tmp_path):
    throwaway(tmp_path / "certs", {HUB: ["127.0.0.1"]}, CLIENTS)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
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
            end = time.monotonic() + 120
            while not condition():
                assert {party: child.poll() for party, child in children.items()} == dict.fromkeys(peers), proxy.corrupted
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
