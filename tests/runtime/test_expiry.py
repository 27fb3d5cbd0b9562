"""Certificates that expire during a run: both ends of a link say so, every day, and so do status and metrics."""

import logging
import time
from datetime import UTC, datetime, timedelta

import pytest

from support.transport_parties import HUB, HUBS, NORTH, SOON, SOUTH, Parties, ZenohNetwork, tls_of
from tdcd.runtime.certificates.issue import issue, throwaway
from tdcd.runtime.process.endpoint import LOOK_S, Endpoint
from tdcd.runtime.process.metrics import METRICS, Snapshot
from tdcd.runtime.process.status import links_of
from tdcd.runtime.storage.status import in_words
from tdcd.runtime.transport.transport import Joined, Left
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

DAY = 86400.0


class Clock:
    """A clock that a test sets."""

    now = time.time()

    def __call__(self):
        return self.now


@pytest.fixture
def heard():
    """What the log is told: who and why."""
    found = []

    class Heard(logging.Handler):
        def emit(self, record):
            found.append((record.levelname, record.facts["why"]))

    handler = Heard()
    logging.getLogger("tdcd").addHandler(handler)
    yield found
    logging.getLogger("tdcd").removeHandler(handler)


def look(endpoint):
    endpoint._looked_at -= LOOK_S
    endpoint.look()


def test_a_certificate_that_expires_is_logged_every_day_and_by_both_ends(tmp_path, heard):
    throwaway(tmp_path, {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH])
    issue(tmp_path, HUB, ["127.0.0.1"], days=1, renew=True, now=datetime.now(UTC) - timedelta(hours=1))
    with Parties(ZenohNetwork(tmp_path)) as parties:
        hub, north = parties.linked(HUB, NORTH)
        begun = time.time()
        clock = Clock()
        clock.now = begun - 24 * DAY
        endpoints = [Endpoint(end, clock) for end in (hub, north)]
        assert set(hub.expiries) == set(north.expiries) == {HUB, NORTH}
        for hours in range(0, 24 * 27, 6):
            clock.now = begun - 24 * DAY + hours * 3600
            for endpoint in endpoints:
                look(endpoint)
    soon = [why for level, why in heard if level == "WARNING" and f"of {HUB}" in why]
    assert len(soon) == 24
    assert ", in 23 days; renew it: tdcd certs request, or tdcd certs issue --renew" in soon[0]
    over = [why for level, why in heard if level == "ERROR" and f"of {HUB}" in why]
    assert sorted({why.partition(" UTC, ")[2] for why in over}) == [
        "so its link is closed until it has a new one",
        "so its links are closed; renew it: tdcd certs request, or tdcd certs issue --renew",
    ]
    assert len(over) == 4, "twice by each end, in the two days after"
    facts = {**links_of(endpoints[0]), "party": HUB, "phase": "stepping", "status": None, "alive": True, "round": 1}
    facts |= {"rounds": 2, "connected": [], "refused": {}, "last_error": ""}
    assert f"  certificate of {HUB} has expired: renew it" in in_words(facts)
    assert endpoints[0].reasons([NORTH]) == {"expired": [NORTH]}
    (metric,) = [metric for metric in METRICS if metric.name == "tdcd_certificate_days_left"]
    left = {labels["party"]: days for labels, days in metric.samples(Snapshot(facts))}
    assert left == endpoints[0].days_left()
    assert -2 < left[HUB] < left[NORTH] < 0


def test_the_other_end_knows_why_a_link_was_closed(tmp_path, heard):
    """A busy machine may not connect before a certificate expires: then with one that is good for longer."""
    throwaway(tmp_path, {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH])
    with Parties(ZenohNetwork(tmp_path)) as parties:
        (hub,) = parties.join(HUB)
        for seconds in (3, 12, 48):
            issue(tmp_path, SOUTH, days=1, renew=True, now=datetime.now(UTC) - timedelta(days=1, seconds=-seconds))
            with ZenohTransport(
                SOUTH, [HUB], addresses=parties.network.addresses, tls=tls_of(tmp_path, SOUTH)
            ) as south:
                joined = hub.receive(seconds + 1)
                if joined is not None:
                    assert [joined, hub.receive(SOON)] == [Joined(SOUTH), Left(SOUTH)]
                    for end in (hub, south):
                        Endpoint(end).look()
                    break
    whys = [why for level, why in heard if level == "ERROR"]
    assert len(whys) == 2
    assert all(why.startswith(f"the certificate of {SOUTH} expired on ") for why in whys)
