"""All parties of a federation in one process and one thread, their messages carried in an order that a seed chooses."""

import random
from collections import Counter, defaultdict, deque

import numpy as np

from tdcd.core.codecs.codec import seed_words, simulated_secret
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.machine.instructions import Absence, Append, End, Save
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode

SECRET = bytes(range(32))


def noise_key(job, silo):
    """The secret of a hub's noise that a simulation has, so that both have the same history."""
    if not job.variant.needs_secret:
        return b""
    return np.array(simulated_secret(seed_words(job.settings.seed), silo), "<u4").tobytes()


class InProcess:
    """A post office: every pair of parties has a queue, and a random one of them is served next."""

    def __init__(self, config, data, seed=0, configs=None):
        """``data`` has the clients' rows and, where silos may lack samples, the hubs' lists of them, by party."""
        configs = configs or {}
        self.rng = random.Random(seed)
        job = Job(config)
        self.machines = {}
        self.data = data
        for index, hub in enumerate(job.hubs):
            own = Job(configs.get(hub, config))
            self.machines[hub] = self.hub(own, index)
            for client in job.clients(index):
                own = Job(configs.get(client, config))
                self.machines[client] = Client(own, index, client, data[client])
        self.queues = defaultdict(deque)
        self.history = defaultdict(list)
        self.test_scores, self.subsets = {}, {}
        self.states = {}
        self.absences = defaultdict(list)
        self.ends = {}
        self.sent = []
        self.refused = Counter()

    def hub(self, job, index, restored=None):
        key, nonce, listed = noise_key(job, index), f"nonce {index}", self.data.get(job.hubs[index])
        return Hub(job, index, secret=SECRET, nonce=nonce, restored=restored, noise_key=key, listed=listed)

    def start(self):
        for name, machine in self.machines.items():
            if isinstance(machine, Hub):
                for other in (*machine.clients, *machine.peers):
                    self.act(name, machine.joined(other))

    def act(self, party, instructions):
        for instruction in instructions:
            if isinstance(instruction, Message):
                self.sent.append(instruction)
                self.queues[party, instruction.receiver].append(encode(instruction))
            elif isinstance(instruction, Append):
                self.history[party].append(instruction.record)
                self.test_scores[party], self.subsets[party] = instruction.test_scores, instruction.subsets
            elif isinstance(instruction, Save):
                self.states[party] = instruction.state
            elif isinstance(instruction, Absence):
                self.absences[party].append(instruction)
            elif isinstance(instruction, End):
                self.ends[party] = instruction

    def deliver(self):
        """One message; false when there is none."""
        waiting = [pair for pair, queue in self.queues.items() if queue]
        if not waiting:
            return False
        sender, receiver = self.rng.choice(waiting)
        data = self.queues[sender, receiver].popleft()
        try:
            self.act(receiver, self.machines[receiver].receive(decode(data, sender=sender, receiver=receiver)))
        except RejectedMessage as refusal:
            self.refused[f"{sender} to {receiver}: {refusal}"] += 1
        return True

    def come_back(self, hub, state):
        """A hub is killed and started again from ``state``: its links' messages are lost, and its clients join anew."""
        for pair in [pair for pair in self.queues if hub in pair]:
            self.queues[pair].clear()
        config = self.machines[hub].job.config
        index = Job(config).hubs.index(hub)
        job = Job(config)
        back = self.machines[hub] = self.hub(job, index, state)
        for other in (*back.clients, *back.peers):
            if isinstance(self.machines[other], Client):
                self.machines[other] = Client(Job(config), index, other, self.data[other])
            else:
                self.act(other, self.machines[other].joined(hub))
            self.act(hub, back.joined(other))
        while self.deliver():
            pass
        # What was lost on the way is asked for again, as a process does after a while.
        for name, machine in self.hubs.items():
            self.act(name, machine.remind())
        while self.deliver():
            pass

    def run(self):
        self.start()
        while self.deliver():
            pass
        return self

    @property
    def hubs(self):
        return {name: machine for name, machine in self.machines.items() if isinstance(machine, Hub)}

    def blocks(self):
        return {name: hub.rounds.final()[1] for name, hub in self.hubs.items()}


def largest_difference(left, right):
    """Of two trees of arrays."""
    import jax

    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
