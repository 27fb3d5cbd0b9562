"""Clients that a hub goes on without: the mathematics of what is left, and what the history says of it."""

import numpy as np
import pytest

from support.in_process import SECRET, InProcess
from support.parts import between_hubs, from_client, to_client
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.core.schedule import batch_ids
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.machine.instructions import Absence
from tdcd.runtime.machine.questions import Absences
from tdcd.runtime.messages.messages import Who
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.process.driver import Grace

UNEQUAL = with_keys(
    RIDGE,
    silos=[{"name": "a", "clients": 3}, {"name": "b", "clients": 2}, {"name": "c", "clients": 1}],
    federation={"client_grace_s": 5.0, "rows": "dirichlet", "alpha": 3.0},
    train={"rounds": 10, "step_size": 0.1},
)
A2, A3, B1, C1 = "client.a.c2", "client.a.c3", "client.b.c1", "client.c.c1"
SCRIPT = {A2: (3, "block", 5), B1: (4, "received", 5), A3: (8, "evaluated", None)}
"""The question from which on a client hears nothing, and the hub's round in which it is there again."""


class Deaf(InProcess):
    """Some clients do not hear their hub for a while; when nothing moves any more, the grace period is over."""

    def __init__(self, config, data, script, **options):
        super().__init__(config, data, **options)
        self.script, self.unheard = script, {}

    def act(self, party, instructions):
        for instruction in instructions:
            if isinstance(instruction, Message) and self.is_deaf(instruction):
                self.unheard[instruction.receiver] = instruction
            else:
                super().act(party, [instruction])

    def is_deaf(self, message):
        first, kind, back = self.script.get(message.receiver, (None, "", None))
        if message.kind not in ("evaluated", "block", "received") or first is None:
            return False
        order = ("evaluated", "block", "received")
        reached = (message.round, order.index(message.kind)) >= (first, order.index(kind))
        return reached and (back is None or self.machines[message.sender].round < back)

    def deliver(self):
        for client, question in [*self.unheard.items()]:
            if not self.is_deaf(question):
                del self.unheard[client]
                for answer in self.machines[client].receive(question):
                    self.act(question.sender, self.machines[question.sender].receive(answer))
        return super().deliver() or self.grace_is_over()

    def grace_is_over(self):
        for name, hub in self.hubs.items():
            late = [question for question in hub.open_questions() if question.receiver in hub.missing()]
            for question in late:
                self.act(name, hub.overdue(question))
            if late:
                return True
        return False

    def lines(self, hub="hub.a"):
        return {record.round: (record.absent, record.unscored) for record in self.history[hub]}


# The mathematics, as plain loops


class Silo:
    """One silo's samples in the order that all silos share, with what its hub wrote down of its clients."""

    def __init__(self, office, index):
        job = office.hubs["hub.a"].job
        sample_index = office.hubs["hub.a"].handshake.sample_index
        self.clients, self.noted = job.clients(index), office.absences[job.hubs[index]]
        place = {one: number for number, one in enumerate(sample_index.ids)}
        held = [office.data[client] for client in self.clients]
        rows = np.concatenate([[place[one] for one in data.ids] for data in held])
        features = np.concatenate([data.features for data in held])[np.argsort(rows)].astype(float)
        owner = np.repeat(np.arange(len(held)), [len(data.ids) for data in held])[np.argsort(rows)]
        self.features, self.test = features[~sample_index.held_out], features[sample_index.held_out]
        self.owner, self.test_owner = owner[~sample_index.held_out], owner[sample_index.held_out]
        self.sizes = np.bincount(self.owner, minlength=len(held))
        self.block = np.asarray(office.hubs[job.hubs[index]].handshake.compute.start["weight"])

    def out(self, round_index, kind):
        order, found = ("evaluated", "block", "received"), set()
        for note in self.noted:
            if (note.round, order.index(note.question or "evaluated")) <= (round_index, order.index(kind)):
                found = found - {note.client} if note.question is None else found | {note.client}
        return [self.clients.index(client) for client in found]


def trained(office, config):
    """Losses by round over the samples that are there, and the blocks at the end."""
    silos, sample_index = (
        [Silo(office, index) for index in range(len(config.silos))],
        office.hubs["hub.a"].handshake.sample_index,
    )
    labels, tests, losses = sample_index.train_labels, sample_index.test_labels, {}
    for index in range(config.train.rounds + 1):
        if index % config.evaluate.every == 0:
            losses[index] = measured(silos, index, labels, tests, config.model.l2)
        if index < config.train.rounds:
            one_round(silos, index, labels, config)
    return losses, [silo.block for silo in silos]


def measured(silos, index, labels, tests, l2):
    penalty = sum(l2 / 2 * np.sum(silo.block**2) for silo in silos)
    there = np.all([~np.isin(silo.owner, silo.out(index, "evaluated")) for silo in silos], axis=0)
    there_test = np.all([~np.isin(silo.test_owner, silo.out(index, "evaluated")) for silo in silos], axis=0)
    train = sum(silo.features @ silo.block for silo in silos)[:, 0] - labels
    test = sum(silo.test @ silo.block for silo in silos)[:, 0] - tests
    return np.mean(train[there] ** 2) / 2 + penalty, np.mean(test[there_test] ** 2) / 2 + penalty


def one_round(silos, index, labels, config):
    settings, samples = config.train, len(labels)
    ids = batch_ids(
        config.seed,
        [index],
        num_samples=samples,
        batch_size=samples if settings.minibatches == "full" else settings.batch_size,
        local_steps=settings.local_steps,
        minibatches=settings.minibatches,
    )[0]
    phis = [silo.features @ silo.block for silo in silos]
    there = np.all([~np.isin(silo.owner, silo.out(index, "block")) for silo in silos], axis=0)
    averages = []
    for number, silo in enumerate(silos):
        others = sum(phi for other, phi in enumerate(phis) if other != number)
        taking_part = [k for k in range(len(silo.sizes)) if k not in silo.out(index, "block")]
        answering = [k for k in taking_part if k not in silo.out(index, "received")]
        average = 0
        for client in answering:
            block = silo.block.copy()
            for step in range(settings.local_steps):
                batch = ids[step if len(ids) > 1 else 0]
                rows = [one for one in batch if silo.owner[one] == client and there[one]]
                left = sum(there[one] for one in batch)
                slope = config.model.l2 * block
                for one in rows:
                    error = silo.features[one] @ block + others[one] - labels[one]
                    unbiased = sum(silo.sizes[taking_part]) / (silo.sizes[client] * left)
                    weight = unbiased if settings.gradient == "unbiased" else 1 / len(rows)
                    slope = slope + weight * np.outer(silo.features[one], error)
                block = block - settings.step_size * slope
            average = average + silo.sizes[client] / sum(silo.sizes[answering]) * block
        averages.append(average)
    for silo, average in zip(silos, averages, strict=True):
        silo.block = average


@pytest.mark.parametrize(
    ("gradient", "minibatches"), [("unbiased", "fresh"), ("mean", "fresh"), ("unbiased", "full"), ("mean", "reused")]
)
def test_training_continues_with_the_samples_that_are_left(gradient, minibatches):
    config = with_keys(UNEQUAL.model_dump(), train={"gradient": gradient, "minibatches": minibatches})
    office = Deaf(config, shards(plan(config)), SCRIPT).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert not office.refused
    losses, blocks = trained(office, config)
    for history in office.history.values():
        assert [record.round for record in history] == [*losses]
        for record in history:
            assert (record.train_loss, record.test_loss) == pytest.approx(losses[record.round], rel=1e-10)
    for found, block in zip(office.blocks().values(), blocks, strict=True):
        assert np.abs(found["weight"] - block).max() < 1e-11
    complete = InProcess(config, office.data).run().blocks()
    for found, block in zip(complete.values(), blocks, strict=True):
        assert np.abs(found["weight"] - block).max() > 1e-4, "leaving clients out must matter"


@pytest.mark.parametrize("seed", range(3))
def test_every_hub_has_the_same_history_with_every_absence(seed):
    office = Deaf(UNEQUAL, shards(plan(UNEQUAL)), SCRIPT, seed=seed).run()
    assert office.absences["hub.a"] == [Absence(A2, 3, "block"), Absence(A2, 6, None), Absence(A3, 8, "evaluated")]
    assert office.absences["hub.b"] == [Absence(B1, 4, "received"), Absence(B1, 6, None)]
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1
    assert office.lines() == {
        0: ({}, []),
        2: ({}, []),
        4: ({A2: [3]}, [A2]),
        6: ({A2: [4, 5], B1: [4, 5]}, []),
        8: ({}, [A3]),
        10: ({A3: [8, 9]}, [A3]),
    }
    assert '"absent"' not in office.history["hub.a"][0].to_json()


def test_masks_and_counts_are_sent_only_where_a_client_is_absent():
    office = Deaf(UNEQUAL, shards(plan(UNEQUAL)), SCRIPT).run()
    received = [m for m in office.sent if m.receiver == C1 and m.kind == "received"]
    assert {m.round for m in received if "rows" in m.arrays} == {3, 4, 5, 8, 9}
    masks = {"phi": "absent", "scores": "train_absent"}
    parts = [m for m in office.sent if between_hubs(m, *masks)]
    masked = {(m.sender, m.kind, m.round) for m in parts if masks[m.kind] in m.arrays}
    assert {(kind, at) for sender, kind, at in masked if sender == "hub.a"} == {
        *(("phi", at) for at in (3, 4, 5, 8, 9)),
        *(("scores", at) for at in (4, 8, 10)),
    }
    assert {(kind, at) for sender, kind, at in masked if sender == "hub.b"} == {("phi", 5)}


def test_a_silo_alone_averages_and_measures_those_that_are_there():
    config = with_keys(UNEQUAL.model_dump(), silos=[{"name": "a", "clients": 3}])
    office = Deaf(config, shards(plan(config)), {A2: (3, "block", 5)}).run()
    assert office.lines()[4] == ({A2: [3]}, [A2])
    assert office.lines()[6] == ({A2: [4, 5]}, [])
    hub = office.hubs["hub.a"]
    sent = {m.sender: m for m in office.sent if from_client(m, "block") and m.round == 4}
    sizes = {client: hub.handshake.compute.rows_of(index, False) for index, client in enumerate(hub.clients)}
    assert set(sent) == {"client.a.c1", A3}
    mean = sum(sizes[client] * m.arrays["weight"].values for client, m in sent.items()) / sum(sizes[c] for c in sent)
    begin = next(m for m in office.sent if to_client(m, "block") and m.round == 5)
    assert begin.arrays["weight"].values == pytest.approx(mean, rel=1e-12)


def test_samples_that_are_nowhere_complete_give_no_line_and_are_reported_in_the_next():
    """Two silos that split rows alike, and lack one half each."""
    config = with_keys(
        UNEQUAL.model_dump(),
        silos=[{"name": "a", "clients": 2}, {"name": "b", "clients": 2}],
        federation={"rows": "contiguous", "aligned": True},
    )
    script = {A2: (3, "block", 5), B1: (3, "block", 5)}
    office = Deaf(config, shards(plan(config)), script).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert [record.round for record in office.history["hub.a"]] == [0, 2, 6, 8, 10]
    assert office.lines()[6] == ({A2: [3, 4, 5], B1: [3, 4, 5]}, [])
    assert office.history["hub.a"] == office.history["hub.b"]


# Who may be left out, and when


def stopped(script, config=UNEQUAL, until=lambda office: False):
    """A federation in which nothing moves any more; the grace period is not over."""
    office = Deaf(config, shards(plan(config)), script)
    office.grace_is_over = lambda: False
    office.start()
    while office.deliver() and not until(office):
        pass
    return office


def test_no_client_is_left_out_before_another_one_has_answered():
    office = stopped(dict.fromkeys(("client.a.c1", A2, A3), (3, "block", None)))
    hub = office.hubs["hub.a"]
    assert [*hub.missing()] == ["client.a.c1", A2, A3]
    assert hub.open_questions() == []
    del office.script["client.a.c1"]
    office.deliver()
    assert {question.receiver for question in hub.open_questions()} == {A2, A3}
    del office.grace_is_over
    while office.deliver():
        pass
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert office.lines()[10] == ({A2: [8, 9], A3: [8, 9]}, [A2, A3])


def test_the_only_client_of_a_silo_is_waited_for():
    office = stopped({C1: (3, "block", None)})
    assert [*office.hubs["hub.c"].missing()] == [C1]
    assert office.hubs["hub.c"].open_questions() == []
    assert [[*hub.missing()] for hub in office.hubs.values()] == [["hub.c"], ["hub.c"], [C1]]


def test_all_are_waited_for_in_the_first_rounds_after_a_start():
    assert stopped({A2: (1, "received", None)}).hubs["hub.a"].open_questions() == []
    assert len(stopped({A2: (3, "received", None)}).hubs["hub.a"].open_questions()) == 1


def test_all_are_waited_for_without_the_setting():
    config = with_keys(UNEQUAL.model_dump(), federation={"client_grace_s": None})
    office = stopped({A2: (3, "block", None)}, config)
    assert [*office.hubs["hub.a"].missing()] == [A2]
    assert office.hubs["hub.a"].open_questions() == []


def test_a_client_that_is_left_out_is_asked_again_once_every_grace_period():
    office = stopped({A2: (3, "block", None)})
    hub = office.hubs["hub.a"]
    (question,) = hub.open_questions()
    assert hub.overdue(question)[0] == Absence(A2, 3, "block")
    assert (hub.left_out(), A2 in hub.missing()) == ([A2], False)
    assert hub.open_questions() == [question]
    assert hub.overdue(question) == [question]
    (late,) = office.machines[A2].receive(question)
    for _ in range(2):
        assert hub.receive(late) == [], "a late answer is none, and does no harm"
    assert hub.open_questions() == []
    assert hub.overdue(question) == []


def test_a_client_that_is_another_process_now_takes_part_again():
    office = stopped({A2: (3, "block", 7)}, until=lambda office: office.hubs["hub.a"].round == 3)
    del office.grace_is_over
    while office.hubs["hub.a"].round < 5:
        assert office.deliver()
    office.unheard.clear()
    office.script = {}
    office.machines[A2] = Client(Job(UNEQUAL), 0, A2, office.data[A2], "another")
    office.act("hub.a", office.hubs["hub.a"].joined(A2))
    while office.deliver():
        pass
    assert {end.status for end in office.ends.values()} == {"finished"}
    left, back = office.absences["hub.a"]
    assert (left.round, back.question) == (3, None)
    assert 5 < back.round <= 10
    assert not office.hubs["hub.a"].left_out()


def test_the_grace_period_is_that_of_a_question_and_not_of_a_hub_that_sleeps():
    now = [0.0]
    grace, (one, other) = Grace(5.0, 0.25, lambda: now[0]), (Who("hub", "a"), Who("hub", "b"))

    def over_at(time, *questions):
        now[0] = time
        return grace.over(questions)

    assert over_at(0.0, one) == []
    assert over_at(3.0, one, other) == []
    assert over_at(5.0, one, other) == []
    assert over_at(6.0, one, other) == [one]
    assert over_at(8.0, one) == [], "it was asked for anew at 6, and the other one answered"
    assert over_at(11.5, one) == [one]
    assert over_at(12.0, other) == []
    assert over_at(60.0, other) == [], "who slept cannot tell who was late"
    assert over_at(65.4, other) == [other]


def test_absences_are_looked_up_by_round_and_question():
    noted = [Absence("x", 3, "block"), Absence("x", 6, None), Absence("x", 6, "received"), Absence("y", 5, "evaluated")]
    order = ("evaluated", "block", "received")
    books = Absences(("x", "y"), order, noted)
    cases = [(2, 2), (3, 0), (3, 1), (5, 0), (6, 1), (6, 2), (9, 0)]
    cases = [(at, order[question]) for at, question in cases]
    assert [books.out(*case) for case in cases] == [[], [], [0], [0, 1], [1], [0, 1], [0, 1]]
    assert books.claims(2, 8) == ({"x": [3, 4, 5, 6, 7], "y": [5, 6, 7]}, ["x", "y"])
    assert books.claims(0, 3) == ({}, [])
    assert books.take_back(7) == [Absence("x", 7, None), Absence("y", 7, None)]
    assert books.out(7, "evaluated") == []


# A hub that comes back


def test_a_hub_that_comes_back_continues_without_the_same_clients():
    """At every message after its decision: the peers hear the same again, though the client could be asked now."""
    whole = Deaf(UNEQUAL, shards(plan(UNEQUAL)), {A2: (3, "block", 5)}).run()
    for after in range(0, 60, 7):
        office = Deaf(UNEQUAL, whole.data, {A2: (3, "block", 5)})
        office.start()
        while not office.absences["hub.a"]:
            assert office.deliver()
        for _ in range(after):
            assert office.deliver()
        office.script, office.unheard = {}, {}
        restarted(office, "hub.a")
        while office.deliver() or reminded(office):
            pass
        assert {end.status for end in office.ends.values()} == {"finished"}, after
        assert office.absences["hub.a"][0] == Absence(A2, 3, "block")
        assert office.history["hub.b"] == office.history["hub.c"]
        lines = {record.round: record for record in office.history["hub.a"]}
        assert [lines[record.round] for record in office.history["hub.b"]] == office.history["hub.b"]


def restarted(office, party):
    """The hub is another process now, with what it had saved; what was on its links is lost."""
    for other in office.machines:
        office.queues.pop((party, other), None)
        office.queues.pop((other, party), None)
    state, absences = office.states[party], office.absences[party]
    hub = Hub(Job(UNEQUAL), 0, secret=SECRET, nonce="nonce 0", restored=state, absences=[*absences])
    office.machines[party] = hub
    for other in (*hub.clients, *hub.peers):
        office.act(party, hub.joined(other))
        if other in hub.peers:
            office.act(other, office.machines[other].joined(party))


def reminded(office):
    if len(office.ends) == len(office.hubs):
        return False
    for name, hub in office.hubs.items():
        office.act(name, hub.remind())
    return True
