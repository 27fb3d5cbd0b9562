"""A hub that continues from what version 0.2 wrote: parts and digests had another form then."""

import json

import numpy as np
import pytest

from tdcd.config import check_config
from tdcd.records.files import Mark
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.machine.exchange import HubExchange
from tdcd.runtime.machine.instructions import Absence
from tdcd.runtime.messages.former_parts import is_former
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.structure import named
from tdcd.runtime.storage.hub_restart import absence_line, read_absences

pytestmark = pytest.mark.quick

FORMER = {"hub.a": "ab" * 16, "hub.b": "cd" * 32, "hub.c": "ef" * 16}


def exchange(digests):
    """Hub a, at the start of round 5 with these digests of round 4."""
    silos = [{"name": name, "clients": 1} for name in "abc"]
    job = Job(check_config({"data": {"source": "diabetes"}, "model": {"block": "linear"}, "silos": silos}))
    found = HubExchange("hub.a", job.topology, "run", job.timing)
    found.restore([], {4: digests}, {}, 5)
    return found


def part(hub, round_index, digests):
    phi = named({"phi": np.full((1, 2, 1), round_index)})
    return Part(hub, "hub.a", round_index, "run", flow="phi", arrays=phi, digests=digests)


def exchanged(hubs, round_index, of_b):
    """All parts of a round; hub b says that it received ``of_b`` in the round before, the others what hub a did."""
    own = hubs.digests.get(round_index - 1, {})
    hubs.publish(part("hub.a", round_index, own))
    hubs.receive(part("hub.b", round_index, of_b))
    hubs.receive(part("hub.c", round_index, own))
    hubs.settle(round_index, [("phi", round_index)])


def test_digests_of_before_are_compared_with_those_of_before():
    exchanged(exchange(FORMER), 5, FORMER)
    with pytest.raises(IncompatibleParties, match=r"hub\.b sent hub\.b and hub\.a different things"):
        exchanged(exchange(FORMER), 5, {**FORMER, "hub.b": "cd" * 16 + "00" * 16})


def test_a_hub_that_was_a_round_further_when_it_was_upgraded_may_continue():
    """It knows what it received in round 5 by digests of before; hub a, which plays round 5 again, by those of now."""
    hubs = exchange(FORMER)
    exchanged(hubs, 5, FORMER)
    assert not any(map(is_former, hubs.digests[5].values()))
    exchanged(hubs, 6, FORMER)
    # Both have digests of now from here on, and nobody may say otherwise for long.
    exchanged(hubs, 7, hubs.digests[6])
    with pytest.raises(IncompatibleParties, match=r"hub\.a sent hub\.b and hub\.a different things"):
        exchanged(hubs, 8, FORMER)


def test_a_run_that_was_not_upgraded_takes_no_digests_of_before():
    hubs = exchange({hub: f"phi:{digest}" for hub, digest in FORMER.items()})
    with pytest.raises(IncompatibleParties, match="different things"):
        exchanged(hubs, 5, FORMER)


def test_absences_have_their_names_of_now(tmp_path):
    lines, mark = [], Mark()
    for question in ("begin", None, "steps", None, "evaluate"):
        line, mark = absence_line(Absence("client.a.c1", 4, question), "nonce", mark)
        lines.append(line)
    assert json.loads(lines[0])["question"] == "begin"
    found, _ = read_absences(tmp_path / "absences.jsonl", lines, "nonce", ["client.a.c1"], None)
    assert [absence.question for absence in found] == ["block", None, "received", None, "evaluated"]
