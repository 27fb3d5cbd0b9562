"""Who dials: of two hubs the one whose name comes later, or the one that does not accept the other."""

import re
import select
import shutil
import socket
import socketserver
import subprocess
import threading
from pathlib import Path

import pytest

from support.party_processes import free_ports, processes, wait_until, written
from support.transport_parties import HUB, NORTH, SHOP, SOON, ZenohNetwork
from tdcd.config import ConfigError, check_config
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.job import Job
from tdcd.runtime.process.doctor import Party, examine_federation
from tdcd.runtime.process.party import dialled
from tdcd.runtime.transport.transport import Joined, Received


def keys(ports, closed=()):
    silos = [
        {"name": name, "hub": f"127.0.0.1:{port}", "features": [name], "label": "y", "table": "t.csv"}
        for name, port in zip(("bank", "shop", "mill"), ports, strict=False)
    ]
    for silo in silos:
        silo["accept_hubs"] = silo["name"] not in closed
    return {"data": {"source": "files"}, "silos": silos, "model": {"loss": "squared"}}


@pytest.mark.quick
@pytest.mark.parametrize("closed", [(), ("bank",), ("mill",), ("shop",)])
def test_one_of_two_hubs_dials_and_never_one_that_accepts_no_hub(closed):
    job = Job(check_config(keys((1, 2, 3), closed)))
    names = ("bank", "shop", "mill")
    for one in names:
        assert dialled(job, f"client.{one}.c1", [f"hub.{one}"]) == [f"hub.{one}"]
        for other in {*names} - {one}:
            assert job.config.dials(one, other) != job.config.dials(other, one)
            expected = other < one if not {one, other} & {*closed} else one in closed
            assert dialled(job, f"hub.{one}", [f"hub.{other}", f"client.{one}.c1"]) == [f"hub.{other}"] * expected


@pytest.mark.quick
def test_two_hubs_that_can_only_dial_are_refused():
    with pytest.raises(ConfigError, match="silos 'bank' and 'shop': accept_hubs = false in both, but one of two hubs"):
        check_config(keys((1, 2), ("bank", "shop")))


@pytest.mark.quick
def test_the_doctor_looks_for_the_hubs_that_this_one_dials_and_for_no_others():
    ports = free_ports(3)
    config = check_config(keys(ports, ("mill",)))
    found = {finding.subject: finding.words for finding in examine_federation(config, Party("bank", None, None, None))}
    assert found == {
        "hub.bank": f"port {ports[0]} is free",
        **dict.fromkeys(("hub.shop", "hub.mill"), "dials this hub, and need not be reached from here"),
    }
    found = {finding.subject: finding.words for finding in examine_federation(config, Party("mill", None, None, None))}
    assert "nothing listens at" in found["hub.bank"]
    assert "nothing listens at" in found["hub.shop"]


def test_the_link_is_made_by_the_hub_that_is_to_dial():
    network = ZenohNetwork(None)
    # As for its clients, the first hub listens; but not where the other one would look for it.
    known = {SHOP: network.addresses[SHOP], HUB: "127.0.0.1:9"}
    with network.join(SHOP, [HUB], dialled=[]) as shop:
        network.addresses = {**known, HUB: f"127.0.0.1:{free_ports(1)[0]}"}
        with network.join(HUB, [NORTH, SHOP], dialled=[SHOP]) as bank:
            assert bank.receive(SOON) == Joined(SHOP)
            assert shop.receive(SOON) == Joined(HUB)


def test_hubs_meet_where_one_cannot_be_reached_by_the_other(tmp_path):
    """No process listens at the address of the first hub: it listens elsewhere, for its own clients."""
    absent, elsewhere, shop = free_ports(3)
    path = written(tmp_path, keys((absent, shop), ("bank",)))
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.csv").write_text("id,y\n" + "".join(f"{n},1\n" for n in range(5)) + f"{name},0\n")
        (tmp_path / f"{name}.toml").write_text(f'insecure = true\nlisten = "127.0.0.1:{elsewhere}"\n')
    (tmp_path / "shop.toml").write_text("insecure = true\n")
    with processes(tmp_path) as start:
        started = []
        for name in ("bank", "shop"):
            own = ("--silo", name, "--party", tmp_path / f"{name}.toml", "--data", tmp_path / f"{name}.csv")
            started.append(start(name, "align", path, *own, "--out", tmp_path / f"{name}.txt"))
        wait_until(lambda: all(process.poll() is not None for process in started))
        assert [process.poll() for process in started] == [0, 0]
    assert [(tmp_path / f"{name}.txt").read_text().split() for name in ("bank", "shop")] == [[*"01234"]] * 2


class ConnectProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that knows CONNECT and nothing else."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ConnectRequest)
        self.asked = []


class ConnectRequest(socketserver.StreamRequestHandler):
    def handle(self):
        method, address, _ = self.rfile.readline().decode().split()
        self.server.asked.append((method, address))
        while self.rfile.readline().strip():
            pass
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as other:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            pairs = {self.connection: other, other: self.connection}
            while True:
                for ready in select.select([*pairs], [], [])[0]:
                    if not (data := ready.recv(1 << 16)):
                        return
                    pairs[ready].sendall(data)


@pytest.mark.skipif(shutil.which("socat") is None, reason="needs socat on the path")
def test_a_hub_is_reached_through_an_http_proxy_by_the_tunnel_of_the_docs(tmp_path):
    """The command of docs/firewalls.md, over TLS with certificates on both sides."""
    said = (Path(__file__).parents[2] / "docs" / "firewalls.md").read_text()
    (command,) = re.findall(r"`(socat TCP-LISTEN:[^`]+)`", said)
    certs = tmp_path / "certs"
    throwaway(certs, {HUB: ["127.0.0.1"], SHOP: ["127.0.0.1"]}, [NORTH])
    network, (port,) = ZenohNetwork(certs), free_ports(1)
    with ConnectProxy() as proxy, network.join(HUB, [NORTH]) as bank:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        hub = network.addresses[HUB]
        own = {
            "TCP-LISTEN:7447": f"TCP-LISTEN:{port}",
            "clinic.example.org:7447": hub,
            "proxy.example": "127.0.0.1",
            "proxyport=3128": f"proxyport={proxy.server_address[1]}",
        }
        for given, here in own.items():
            assert given in command
            command = command.replace(given, here)
        tunnel = subprocess.Popen(command.split())
        try:
            network.addresses = {**network.addresses, HUB: f"127.0.0.1:{port}"}
            with network.join(NORTH, [HUB]) as north:
                assert (north.receive(SOON), bank.receive(SOON)) == (Joined(HUB), Joined(NORTH))
                large = bytes(100_000)
                north.send(HUB, large)
                assert bank.receive(SOON) == Received(NORTH, large)
                bank.send(NORTH, b"answer")
                assert north.receive(SOON) == Received(HUB, b"answer")
        finally:
            tunnel.terminate()
            tunnel.wait()
            proxy.shutdown()
    assert {*proxy.asked} == {("CONNECT", hub)}
