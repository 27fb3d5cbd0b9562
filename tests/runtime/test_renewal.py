"""New certificate files that are put in place while a party runs: they are used, and nothing has to be restarted."""

import logging
import shutil
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography import x509

from support.party_processes import wait_until
from support.ports import free_address
from support.simulated import RIDGE
from support.transport_parties import HUB, HUBS, NORTH, SOON, SOUTH, ZenohNetwork
from tdcd.config import check_config
from tdcd.runtime.certificates.agreement import Certified
from tdcd.runtime.certificates.check import explain
from tdcd.runtime.certificates.issue import issue, throwaway
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, open_transport
from tdcd.runtime.transport.renewal import Renewal, RenewedTransport
from tdcd.runtime.transport.transport import Joined, Left, LocalNetwork, Received
from tdcd.runtime.transport.zenoh_settings import Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport


@pytest.fixture
def certs(tmp_path):
    throwaway(tmp_path / "certs", {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH])
    return tmp_path / "certs"


class Clock:
    now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def renewal_of(certs, party, told, **options):
    tls = Tls.of(certs, party)
    problems = partial(explain, tls.certificate, tls.key, tls.authority, party)
    return Renewal([tls.certificate, tls.key], problems, told.append, **options)


def test_files_are_used_when_they_are_good_and_all_there(certs, tmp_path):
    told = []
    renewal = renewal_of(certs, NORTH, told, clock=Clock())
    cert, key = (certs / f"{NORTH}{end}" for end in (".pem", ".key"))
    new = shutil.copytree(certs, tmp_path / "new")
    issue(new, NORTH, renew=True, days=7)
    assert not renewal.is_due()
    shutil.copy(new / cert.name, cert)
    assert not renewal.is_due(), "it may be copied to at this moment"
    assert not renewal.is_due(), "its key is missing"
    (why,) = told
    assert why.startswith("new files are not used, and the former ones stay in use: ")
    assert f"{key} is not the key of {cert}" in why
    assert not renewal.is_due()
    shutil.copy(new / key.name, key)
    assert [renewal.is_due() for _ in range(4)] == [False, True, False, False]
    before = cert.read_bytes()
    cert.unlink()
    assert not any(renewal.is_due() for _ in range(4))
    assert "there is no such file" in told[-1]
    cert.write_bytes(before)
    assert not any(renewal.is_due() for _ in range(4)), "as it was"
    assert len(told) == 2
    # What was wrong with files may end without another change of them.
    waits = ["list 0 expects another name"]
    renewal = Renewal([cert], lambda: waits, told.append, clock=Clock())
    cert.write_bytes(before + b"\n")
    assert not any(renewal.is_due() for _ in range(4))
    waits.clear()
    assert [renewal.is_due() for _ in range(2)] == [True, False]
    assert len(told) == 3


def test_a_signer_uses_the_new_pair_as_soon_as_it_is_one(certs, tmp_path):
    signer, check = Certified(certs, NORTH), Certified(certs, HUB).authority.check
    new = shutil.copytree(certs, tmp_path / "new")
    issue(new, NORTH, renew=True)
    serials = []
    for name in (f"{NORTH}.pem", f"{NORTH}.key"):
        shutil.copy(new / name, certs)
        certificate, signature = signer.sign(b"text")
        serials.append(x509.load_der_x509_certificate(certificate).serial_number)
        check(NORTH, b"text", Signed(certificate, signature), "it")
    assert serials[0] != serials[1]


class Signed:
    def __init__(self, certificate, signature):
        self.certificate, self.signature = certificate, signature


def test_links_that_are_closed_while_they_open_again_stay_closed(certs):
    network, ends = LocalNetwork(), []

    def opened():
        end = network.join(NORTH, [HUB])
        for other in ends:
            other.close()
        return end

    told = []
    end = RenewedTransport(opened, renewal_of(certs, NORTH, told, clock=Clock()))
    ends.append(end)
    issue(certs, NORTH, renew=True)
    for _ in range(2):
        with suppress(RuntimeError):
            end.receive(0)
    with pytest.raises(RuntimeError, match="is closed"):
        end.receive(0)
    assert told == []
    network.join(NORTH, [HUB]).close()


def test_a_new_authority_is_said_to_take_a_restart(certs, tmp_path):
    """Signatures that are in use, under keys for masks and lists of revoked certificates, are the former one's."""
    silos = [{"name": name, "hub": free_address(), "clients": ["north"]} for name in ("bank", "shop")]
    job = Job(check_config(RIDGE | {"silos": silos}))
    reasons = []

    class Heard(logging.Handler):
        def emit(self, record):
            # Where another test has opened the log, it says at the start that the certificate expires soon.
            if "renew it" not in record.facts["why"]:
                reasons.append(record.facts["why"])

    handler, log = Heard(), logging.getLogger("tdcd")
    log.addHandler(handler)
    try:
        with open_transport(job, NORTH, [HUB], PartySection(certs=str(certs)), "train") as end:
            throwaway(tmp_path / "new", {}, [NORTH])
            for name in ("ca.pem", f"{NORTH}.pem", f"{NORTH}.key"):
                shutil.copy(tmp_path / "new" / name, certs)
            wait_until(lambda: end.receive(0.1) or reasons)
    finally:
        log.removeHandler(handler)
    assert reasons == [
        "new files are not used, and the former ones stay in use: "
        f"{certs / 'ca.pem'} is another authority's: stop all parties and start them again, the run continues"
    ]


def test_a_port_is_free_again_when_files_were_not_good(certs):
    """They may be copied to at the moment when links are opened, which is tried again."""
    address, key = {HUB: free_address()}, certs / f"{HUB}.key"
    good = key.read_bytes()
    for data in (good[:99], good):
        key.write_bytes(data)
        with (
            nullcontext() if data == good else pytest.raises(ValueError, match="is not a private key"),
            ZenohTransport(HUB, [NORTH], addresses={}, listen=address[HUB], tls=Tls.of(certs, HUB)),
        ):
            pass


@pytest.mark.parametrize("party", [HUB, NORTH])
def test_links_are_opened_again_with_the_new_certificate(certs, party):
    network, told = ZenohNetwork(certs), []
    hosts = ["127.0.0.1"] * (party == HUB)
    issue(certs, party, hosts, days=1, renew=True, now=datetime.now(UTC) - timedelta(hours=1))

    def joined(name, peers):
        return RenewedTransport(partial(network.join, name, peers), renewal_of(certs, name, told))

    with joined(HUB, [NORTH, SOUTH]) as hub, joined(NORTH, [HUB]) as north, joined(SOUTH, [HUB]) as south:
        assert {hub.receive(SOON) for _ in range(2)} == {Joined(NORTH), Joined(SOUTH)}
        assert [north.receive(SOON), south.receive(SOON)] == [Joined(HUB)] * 2
        north.send(HUB, b"before")
        assert hub.receive(SOON) == Received(NORTH, b"before")
        before = hub.expiries[party]
        issue(certs, party, hosts, renew=True)
        ends = {HUB: hub, NORTH: north}
        events = {name: [] for name in ends}

        def is_renewed():
            for name, end in ends.items():
                while (event := end.receive(0.05)) is not None:
                    events[name].append(event)
            return hub.expiries[party] > before and all(kinds[-1:] == [Joined] for kinds in seen())

        def seen():
            """What hub and client know of their link: a tuple's kind is not part of what it equals."""
            of_north = [event for event in events[HUB] if event.party == NORTH]
            return [[type(event) for event in found] for found in (of_north, events[NORTH])]

        wait_until(is_renewed)
        assert seen() == [[Left, Joined]] * 2
        assert told == [f"a new one is in use from now on: {party} has opened its links again"]
        north.send(HUB, b"after")
        wait_until(lambda: hub.receive(0.05) == Received(NORTH, b"after"))
        assert north.sent_bytes == {HUB: len(b"beforeafter")}
