"""Alignments of which a party is killed: at every message that it sends, and several at random."""

import random

import pytest

from tdcd.config import check_config
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.process.align import AlignClient, AlignHub
from tdcd.runtime.process.dialogue import Session
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.transport.transport import LocalNetwork

pytestmark = pytest.mark.quick

SECRET = bytes(range(32))
IDS = {
    "client.bank.n": ["1", "2", "3", "ä"],
    "client.bank.s": ["10", "11"],
    "hub.shop": ["2", "3", "4", "11", "ä"],
    "hub.bureau": ["11", "3", "ä", "12", "4"],
}
NAMES = [{"name": "bank", "clients": ["n", "s"]}, {"name": "shop", "clients": 1}, {"name": "bureau", "clients": 1}]


def config_of(labelled, **data):
    silos = [silo | ({"label": "y"} if silo["name"] in labelled else {}) for silo in NAMES]
    labels = {"federation": {"labels": labelled[0]}} if len(labelled) == 1 else {}
    return check_config({"data": {"source": "files", **data}, "silos": silos, **labels})


COMMON = config_of(["bank", "shop", "bureau"])
ONE_LABELS = config_of(["shop"], samples="all")
ALL_LABEL = config_of(["bank", "shop", "bureau"], samples="all")


class KilledError(Exception):
    """The process ends here."""


class Watched:
    """A transport at whose ``place``-th message its party is killed, just before or just after it is sent."""

    def __init__(self, transport, place=None):
        self.transport, self.place, self.num_sent = transport, place, 0

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def send(self, receiver, data):
        self.num_sent += 1
        number, is_sent = self.place or (0, True)
        if is_sent or number != self.num_sent:
            self.transport.send(receiver, data)
        if number == self.num_sent:
            raise KilledError


class Step:
    """All parties of an alignment, in one thread; who is killed comes back at once."""

    def __init__(self, config, answer="ids", ids=IDS):
        self.job, self.answer, self.ids = Job(config), answer, ids
        self.parties = [*self.job.hubs, *self.job.clients(0)]
        self.network, self.sessions, self.ended = LocalNetwork(), {}, {}

    def dialogue(self, party):
        own = self.ids.get(party)
        if party in self.job.hubs:
            held = None if own is None else {party: own}
            return AlignHub(self.job, self.job.hubs.index(party), SECRET, held, answer=self.answer)
        return AlignClient(self.job, 0, party, own, self.answer)

    def begin(self, party, place=None):
        dialogue = self.dialogue(party)
        transport = Watched(self.network.join(party, dialogue.partners), place)
        self.sessions[party] = Session(dialogue, Endpoint(transport))

    def kill(self, party, *, is_lost=False):
        """End its process; what it has sent and nobody has read may be lost."""
        others = [other for other in self.sessions if other != party]
        for other in others if is_lost else []:
            self.sessions[other].endpoint.transport.mailbox.forget_messages(party)
        self.sessions.pop(party).endpoint.transport.close()

    def run(self, places=None, rng=None, *, is_lost=False):
        """To the end, or until those who are left wait for others who have ended."""
        for party in self.parties:
            self.begin(party, (places or {}).get(party))
        idle = 0
        while self.sessions and idle <= len(self.parties):
            for party in rng.sample([*self.sessions], len(self.sessions)) if rng else [*self.sessions]:
                session = self.sessions[party]
                waiting = session.endpoint.transport.mailbox._events.qsize()
                try:
                    session.step(0)
                except KilledError:
                    self.kill(party, is_lost=is_lost)
                    self.begin(party)
                idle = 0 if waiting else idle + 1
                if session.is_over and self.sessions[party] is session:
                    self.ended[party] = session
                    session.endpoint.transport.close()
                    del self.sessions[party]
        return self

    @property
    def is_lost(self):
        """Whether some have ended while others wait for them: all have to begin again."""
        return bool(self.sessions)

    @property
    def result(self):
        found = {}
        for party, session in self.ended.items():
            assert session.outcome.status == "finished", session.outcome
            dialogue = session.dialogue
            listed = getattr(dialogue, "listed", None)
            numbers = listed and (
                listed.total,
                listed.numbers.tolist(),
                {n: h.tolist() for n, h in listed.held_by.items()},
            )
            found[party] = dialogue.common, getattr(dialogue, "counts", None), numbers
        return found


def test_a_client_that_comes_back_with_other_ids_is_refused():
    step = Step(COMMON)
    step.begin("hub.bank")
    hub = step.sessions["hub.bank"].dialogue
    for client, ids in [("client.bank.n", ["1"]), ("client.bank.s", ["2"])]:
        (message,) = AlignClient(step.job, 0, client, ids).start()
        hub.receive(message)
    assert hub.receive(message) == []
    with pytest.raises(
        IncompatibleParties, match=r"client\.bank\.s came back with other ids than before: start the al"
    ):
        hub.receive(message.replace(ids=["3"]))


def places_of(config, answer):
    """Every message that every party sends, and what it is."""
    step = Step(config, answer).run()
    return step.result, {p: s.endpoint.transport.num_sent for p, s in step.ended.items()}


@pytest.mark.parametrize(("config", "answer"), [(COMMON, "counts"), (ONE_LABELS, "ids"), (ALL_LABEL, "ids")])
def test_whoever_is_killed_at_whichever_message_all_have_the_same_result(config, answer):
    expected, counts = places_of(config, answer)
    assert len(expected) == 5
    lost = []
    for party, count in counts.items():
        partners = len(Step(config, answer).dialogue(party).partners)
        for number in range(1, count + 1):
            for is_sent, loses in [(False, False), (True, False), (True, True)]:
                step = Step(config, answer).run({party: (number, is_sent)}, is_lost=loses)
                assert all(step.result[name] == expected[name] for name in step.ended), (party, number, is_sent)
                if step.is_lost:
                    lost.append((party, number - count + partners))
                    assert Step(config, answer).run().result == expected
    # Others end once all have said goodbye: nobody answers whom a kill stopped from saying it to all.
    assert all(number > 0 for _, number in lost), lost
    assert len(lost) < sum(counts.values())


def test_kills_of_several_in_any_order_of_events():
    expected, counts = places_of(ALL_LABEL, "ids")
    for seed in range(60):
        rng = random.Random(seed)
        chosen = rng.sample([*counts], rng.randint(1, len(counts)))
        places = {party: (rng.randint(1, counts[party]), rng.random() < 0.5) for party in chosen}
        step = Step(ALL_LABEL).run(places, rng, is_lost=rng.random() < 0.5)
        assert all(step.result[name] == expected[name] for name in step.ended), (seed, places)
        if not step.is_lost:
            assert len(step.ended) == 5
