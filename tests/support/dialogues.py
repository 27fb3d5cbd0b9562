"""Dialogues between parties in one thread, of whom some are killed and come back."""

from tdcd.runtime.process.dialogue import Session
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.transport.transport import LocalNetwork


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


class Dialogues:
    """All parties of a dialogue, in one thread; who is killed comes back at once. ``make(party)`` is one's side."""

    def __init__(self, make, parties):
        self.make, self.parties = make, parties
        self.network, self.sessions, self.ended = LocalNetwork(), {}, {}

    def begin(self, party, place=None):
        dialogue = self.make(party)
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
