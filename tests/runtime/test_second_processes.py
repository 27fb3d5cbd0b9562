"""Real processes with a party's certificate that come and go during a run: they wait, are told, and disturb nobody."""

import json
import signal

import pytest
from test_zenoh_transport import BLOCK, intruder
from typer.testing import CliRunner

from support.party_processes import SOON, events, processes, status, wait_until, written
from support.ports import free_address
from support.simulated import RIDGE
from support.transport_parties import tls_of
from tdcd.cli.app import app
from tdcd.runtime.process.trial import Trial

pytestmark = pytest.mark.slow
BANK, SHOP, NORTH, EAST = "hub.bank", "hub.shop", "client.bank.north", "client.shop.east"
ENDLESS = {"train": RIDGE["train"] | {"rounds": 10**6}, "evaluate": {"every": 10**6}, "name": "m2"}


def said(log, what):
    """What the events of a kind say in a party's log."""
    return [line["why"] for line in events(log) if line["event"] == what] if log.exists() else []


def test_a_second_process_of_a_party_waits_and_the_run_continues(tmp_path):
    silos = [{"name": "bank", "clients": ["north"]}, {"name": "shop", "clients": ["east"]}]
    path = written(tmp_path, RIDGE | ENDLESS | {"silos": silos, "runtime": {"resend_s": 0.2}})
    home = tmp_path / "trial"
    trial = Trial.prepare(path, [], home)
    rows, certs = json.loads((home / "data" / "options.json").read_text()), home / "certs"
    common = ("--certs", certs)
    with processes(tmp_path) as start:

        def run(log, role, silo, *options):
            return start(log, role, home / "federation.toml", "--silo", silo, *common, *options)

        honest = [run(hub, "hub", hub[4:], "--out", home / hub) for hub in (BANK, SHOP)]
        honest += [run(NORTH, "client", "bank", "--client", "north", *rows[NORTH])]
        honest += [run(EAST, "client", "shop", "--client", "east", *rows[EAST])]

        def goes_on():
            before = status(home / BANK).get("round", 0)
            wait_until(lambda: status(home / BANK).get("round", 0) > before + 3, *honest)

        goes_on()
        # Another client of the name, with other rows; it ends when it is asked to, and not before.
        second = run("second client", "client", "bank", "--client", "north", *rows[EAST])
        wait_until(lambda: said(tmp_path / "second client.log", "no link"), second, *honest)
        (why,) = said(tmp_path / "second client.log", "no link")
        assert why.startswith(f"{BANK} has a link with another process of {NORTH}, which is training run m2 since 20")
        wait_until(lambda: NORTH in status(home / BANK)["unfit"], *honest)
        shown = CliRunner().invoke(app, ["status", str(home / BANK)]).output
        assert f"  no link     {NORTH} is training run m2 since " in shown
        goes_on()
        second.send_signal(signal.SIGTERM)
        assert second.wait(SOON) == 130
        # Another hub of the name, with a folder of its own.
        listen = ("--listen", free_address(), "--out", tmp_path / "other")
        second = run("second hub", "hub", "shop", *listen)
        wait_until(lambda: said(tmp_path / "second hub.log", "no link"), second, *honest)
        assert (
            f"{BANK} has a link with another process of {SHOP}, which"
            in said(tmp_path / "second hub.log", "no link")[0]
        )
        goes_on()
        second.send_signal(signal.SIGTERM)
        assert second.wait(SOON) == 130
        # Another command.
        table = tmp_path / "ids.csv"
        table.write_text("id\n1\n")
        second = run("align", "align", "shop", "--client", "east", "--data", table, "--out", tmp_path / "ids.txt")
        wait_until(lambda: f"{SHOP} is training run m2 since " in (tmp_path / "align.log").read_text(), second, *honest)
        goes_on()
        second.send_signal(signal.SIGTERM)
        assert second.wait(SOON) == 130
        # A session that keeps no rules.
        for _ in range(3):
            with (
                intruder(tls_of(certs, NORTH), dial=trial.job.config.silos[0].hub) as session,
                session.liveliness().declare_token(f"tdcd/1/{BANK}/{NORTH}/alive/raw"),
            ):
                for key in ("message", "message/*/*", f"message/*/{'ab' * 16}"):
                    session.put(f"tdcd/1/{BANK}/{NORTH}/{key}", b"x", congestion_control=BLOCK)
                wait_until(lambda: "does not say which" in status(home / BANK)["unfit"].get(NORTH, ""), *honest)
            wait_until(lambda: not status(home / BANK)["unfit"], *honest)
        goes_on()
        assert status(home / BANK)["connected"] == [NORTH, SHOP]
        assert status(home / BANK)["certificate_days"].keys() == {BANK, NORTH, SHOP}
