"""Who dials: of two hubs the one whose name comes later, or the one that does not accept the other."""

import pytest

from support.party_processes import processes, wait_until, written
from support.ports import free_ports
from support.transport_parties import HUB, NORTH, SHOP, SOON, ZenohNetwork
from tdcd.config import ConfigError, check_config
from tdcd.runtime.job import Job
from tdcd.runtime.process.doctor import Party, examine_federation
from tdcd.runtime.process.party import dialled
from tdcd.runtime.transport.transport import Joined


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
