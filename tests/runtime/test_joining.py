"""Parties that do not fit together, that are missing, or that come back: nobody starts wrongly, everybody is told."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from support.in_process import SECRET, InProcess
from support.simulated import RIDGE, with_keys
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.messages.messages import Enrol, Ready
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import PROTOCOL, RejectedMessage

pytestmark = pytest.mark.quick

CONFIG = with_keys(RIDGE)
NORTH, SOUTH, C1 = "client.lab.north", "client.lab.south", "client.clinic.c1"
LAB = ("hub.lab", NORTH, SOUTH, "client.lab.west")


class Office(InProcess):
    """A post office that can lose parties, and in which one can say what it does not mean."""

    def __init__(self, data, seed=0, *, config=CONFIG, configs=None, away=(), change=lambda message: message):
        super().__init__(config, data, seed, configs)
        self.away, self.change = set(away), change

    def start(self):
        for hub, machine in self.hubs.items():
            for other in (*machine.clients, *machine.peers):
                if not {hub, other} & self.away:
                    self.act(hub, machine.joined(other))

    def act(self, party, instructions):
        heard = [i for i in instructions if not isinstance(i, Message) or not {i.receiver, party} & self.away]
        super().act(party, [self.change(i) if isinstance(i, Message) else i for i in heard])

    def arrive(self, party):
        self.away.discard(party)
        for hub, machine in self.hubs.items():
            if party in (*machine.clients, *machine.peers) and hub not in self.away:
                self.act(hub, machine.joined(party))
                if party in self.hubs:
                    self.act(party, self.hubs[party].joined(hub))
        for client in self.hubs[party].clients if party in self.hubs else ():
            self.act(party, self.hubs[party].joined(client))

    def run(self):
        self.start()
        return self.settle()

    def settle(self):
        """Deliver until nobody has anything to say."""
        for _ in range(3000):
            if not self.deliver():
                return self
        raise AssertionError("the parties never come to an end")


@pytest.fixture(scope="module")
def data():
    return shards(plan(CONFIG))


@pytest.fixture(scope="module")
def reference(data):
    return Office(data).run().history


def assert_nobody_starts(office, *words):
    """Every party ended with a reason that has all the words."""
    assert not {message.kind for message in office.sent} & {"begin", "steps", "evaluate"}
    assert not office.history
    for name, machine in office.machines.items():
        if isinstance(machine, Hub):
            assert (machine.status, machine.is_over) == ("refused", True), name
            reason = machine.reason
        else:
            assert machine.outcome is not None, f"{name} still waits"
            assert machine.outcome.status == "refused"
            reason = machine.outcome.reason
        for word in words:
            assert word in reason, f"{name} was told: {reason}"


SEEDS = pytest.mark.parametrize("seed", range(3))


# Parties that do not fit together


@SEEDS
def test_another_version_of_a_client(data, seed):
    def newer(message):
        return (
            message.replace(protocol=PROTOCOL + 1) if message.sender == NORTH and message.kind == "enrol" else message
        )

    office = Office(data, seed, change=newer).run()
    assert_nobody_starts(
        office, f"{NORTH} speaks protocol {PROTOCOL + 1} and hub.lab speaks {PROTOCOL}: upgrade the older one"
    )


@SEEDS
def test_another_version_of_a_hub(data, seed):
    def newer(message):
        is_hello = message.kind == "hello" and message.sender == "hub.lab"
        return message.replace(protocol=PROTOCOL + 1) if is_hello else message

    office = Office(data, seed, change=newer).run()
    assert_nobody_starts(office, "hub.lab", "hub.clinic", "protocol", str(PROTOCOL), "upgrade the older one")
    assert (
        f"hub.clinic speaks protocol {PROTOCOL} and hub.lab {PROTOCOL + 1}"
        in office.hubs["hub.clinic"].reason + office.hubs["hub.lab"].reason
    )


@SEEDS
@pytest.mark.parametrize(
    ("section", "keys", "key", "theirs", "ours"),
    [
        ("train", {"step_size": 0.1}, "train.step_size", 0.1, 0.05),
        ("federation", {"share_model": True}, "federation.share_model", True, False),
        ("seed", 1, "seed", 1, 0),
        ("silos", [RIDGE["silos"][0], {**RIDGE["silos"][1], "hub": "a:1"}], "silos.1.hub", "a:1", None),
    ],
)
@pytest.mark.parametrize("who", [(NORTH,), LAB])
def test_another_shared_file(data, seed, section, keys, key, theirs, ours, who):
    office = Office(data, seed, configs=dict.fromkeys(who, with_keys(RIDGE, **{section: keys}))).run()
    other, one = (NORTH, "hub.lab") if who == (NORTH,) else ("hub.lab", "hub.clinic")
    words = (f"{key} is ", f"{theirs!r} at {other}", f"{ours!r} at {one}")
    assert_nobody_starts(office, "the shared files differ: ", *words)


@SEEDS
def test_another_number_of_samples(data, seed):
    north = data[NORTH]
    fewer = replace(
        north, ids=north.ids[1:], labels=north.labels[1:], features=north.features[1:], held_out=north.held_out[1:]
    )
    office = Office({**data, NORTH: fewer}, seed).run()
    assert_nobody_starts(office, "hub.lab has 441", "hub.clinic has 442", "align their ids first (tdcd align)")


@SEEDS
def test_other_samples(data, seed):
    other = replace(data[NORTH], ids=["4711", *data[NORTH].ids[1:]])
    office = Office({**data, NORTH: other}, seed).run()
    assert_nobody_starts(office, "hub.lab", "hub.clinic", "different sample ids, though both have 442 samples")


@SEEDS
@pytest.mark.parametrize("what", ["labels", "held_out"])
def test_other_labels(data, seed, what):
    values = getattr(data[NORTH], what).copy()
    values[0] = not values[0] if what == "held_out" else values[0] + 1e-9
    office = Office({**data, NORTH: replace(data[NORTH], **{what: values})}, seed).run()
    assert_nobody_starts(office, "hub.lab", "hub.clinic", "labels" if what == "labels" else "")


@SEEDS
def test_another_secret(data, seed):
    office = Office(data, seed)
    office.machines["hub.lab"] = Hub(Job(CONFIG), 1, secret=bytes(32), nonce="nonce 1")
    assert_nobody_starts(office.run(), "hub.lab", "hub.clinic", "secret")


@SEEDS
def test_a_sample_that_two_clients_hold(data, seed):
    twice = data[SOUTH].ids[3]
    office = Office({**data, NORTH: replace(data[NORTH], ids=[twice, *data[NORTH].ids[1:]])}, seed).run()
    assert_nobody_starts(office, f"id '{twice}' is held by {NORTH} and by {SOUTH}")


@SEEDS
def test_another_shape_of_a_sample(data, seed):
    office = Office({**data, NORTH: replace(data[NORTH], features=data[NORTH].features[:, 1:])}, seed).run()
    assert_nobody_starts(office, "a sample has shape [", "[5] at ", "[4] at client.lab.north", "at client.lab.")


@SEEDS
def test_another_meaning_of_labels(data, seed):
    other = {"task": "binary", "label_scale": 1.0}
    office = Office({**data, NORTH: replace(data[NORTH], target=other)}, seed).run()
    assert_nobody_starts(office, "client.lab.north and client.lab.", "have different kinds of data")


@SEEDS
def test_more_samples_in_a_minibatch_than_there_are(data, seed):
    config = with_keys(RIDGE, train={"batch_size": 1000})
    office = Office(data, seed, config=config).run()
    assert_nobody_starts(office, "train.batch_size = 1000: there are only 354 training samples")


@SEEDS
def test_a_loss_that_does_not_fit_the_labels(data, seed):
    office = Office(data, seed, config=with_keys(RIDGE, model={"loss": "softmax"})).run()
    assert_nobody_starts(office, "model.loss = 'softmax' does not fit the labels (regression): use squared")


def test_one_hub_of_three_differs():
    silos = [{"name": name, "clients": 1} for name in "abc"]
    config, other = (with_keys(RIDGE, silos=silos, train={"rounds": rounds}) for rounds in (2, 3))
    data = shards(plan(config))
    for seed in range(5):
        office = Office(data, seed, config=config, configs={"hub.c": other, "client.c.c1": other}).run()
        assert_nobody_starts(office, "train.rounds is ", "3 at hub.c", "2 at hub.")


# Parties that are missing


@SEEDS
def test_missing_parties_are_named_and_the_run_begins_when_they_come(data, reference, seed):
    office = Office(data, seed, away=[SOUTH, "hub.clinic"])
    office.start()
    office.settle()
    lab, clinic = office.hubs["hub.lab"], office.hubs["hub.clinic"]
    assert (lab.phase, lab.missing()) == ("gathering", [SOUTH])
    assert [*clinic.missing()] == [C1, "client.clinic.c2", "client.clinic.c3"]
    office.arrive(SOUTH)
    office.settle()
    assert (lab.phase, lab.missing()) == ("comparing", ["hub.clinic"])
    assert not lab.remind() or {m.receiver for m in lab.remind()} == {"hub.clinic"}
    assert not office.history
    office.arrive("hub.clinic")
    office.settle()
    assert office.history == reference
    assert not lab.missing()


@SEEDS
def test_a_client_that_goes_in_the_middle_is_missed_and_comes_back(data, reference, seed):
    office = Office(data, seed)
    office.start()
    while not office.history["hub.lab"] or office.hubs["hub.lab"].round < 3:
        assert office.deliver()
    office.away.add(SOUTH)
    office.queues.pop(("hub.lab", SOUTH), None)
    office.queues.pop((SOUTH, "hub.lab"), None)
    office.settle()
    assert [*office.hubs["hub.lab"].missing()] == [SOUTH]
    office.machines[SOUTH] = Client(Job(CONFIG), 1, SOUTH, data[SOUTH])
    office.arrive(SOUTH)
    office.settle()
    assert office.history == reference


# Parties that come back as others, or too late


def begun(data, seed):
    """A federation in its round 2."""
    office = Office(data, seed)
    office.start()
    while office.hubs["hub.lab"].round < 2:
        assert office.deliver()
    return office


def restart(office, party, machine):
    """The party is another process now; what was on its links is lost."""
    for other in office.machines:
        office.queues.pop((party, other), None)
        office.queues.pop((other, party), None)
    office.machines[party] = machine
    office.arrive(party)


def changed_rows(rows):
    features = rows.features.copy()
    features[-1, -1] = np.nextafter(features[-1, -1], 9)
    return {"ids": [*rows.ids[1:], rows.ids[0]], "labels": rows.labels[::-1].copy(), "features": features}


@SEEDS
@pytest.mark.parametrize("what", ["ids", "labels", "features"])
def test_a_client_that_comes_back_with_other_rows_is_turned_away(data, reference, what, seed):
    values = changed_rows(data[NORTH])[what]
    office = begun(data, seed)
    restart(office, NORTH, Client(Job(CONFIG), 1, NORTH, replace(data[NORTH], **{what: values})))
    office.settle()
    reason = f"{NORTH} came back with other rows than it had when the run began"
    assert office.machines[NORTH].outcome == ("refused", reason)
    assert [hub.status for hub in office.hubs.values()] == [None, None]
    assert [*office.hubs["hub.lab"].missing()] == [NORTH]
    restart(office, NORTH, Client(Job(CONFIG), 1, NORTH, data[NORTH]))
    office.settle()
    assert office.history == reference


@SEEDS
def test_a_client_that_comes_back_with_another_file_is_turned_away(data, reference, seed):
    office = begun(data, seed)
    restart(office, NORTH, Client(Job(with_keys(RIDGE, seed=3)), 1, NORTH, data[NORTH]))
    office.settle()
    assert f"seed is 3 at {NORTH} and 0 at hub.lab" in office.machines[NORTH].outcome.reason
    restart(office, NORTH, Client(Job(CONFIG), 1, NORTH, data[NORTH]))
    office.settle()
    assert office.history == reference


@SEEDS
def test_a_client_that_comes_when_all_is_over_gets_the_end(data, seed):
    office = Office(data, seed).run()
    restart(office, NORTH, Client(Job(CONFIG), 1, NORTH, data[NORTH]))
    office.settle()
    assert office.machines[NORTH].outcome == ("finished", "")


@SEEDS
@pytest.mark.parametrize("what", ["ids", "labels", "features"])
def test_a_client_and_its_hub_were_away_and_the_client_has_other_rows(data, reference, what, seed):
    office = begun(data, seed)
    office.machines[NORTH] = Client(
        Job(CONFIG), 1, NORTH, replace(data[NORTH], **{what: changed_rows(data[NORTH])[what]})
    )
    state = office.states["hub.lab"]
    # What its folder would have kept.
    office.history["hub.lab"] = [record for record in office.history["hub.lab"] if record.round < state.round]
    restart(office, "hub.lab", Hub(Job(CONFIG), 1, secret=SECRET, nonce="nonce 1", restored=state))
    office.settle()
    reason = f"{NORTH} came back with other rows than it had when the run began"
    assert office.machines[NORTH].outcome == ("refused", reason)
    assert office.machines[SOUTH].outcome is None
    assert [*office.hubs["hub.lab"].missing()] == [NORTH]
    restart(office, NORTH, Client(Job(CONFIG), 1, NORTH, data[NORTH]))
    office.settle()
    # What was on the links when the hub was killed is asked for again.
    for hub, machine in office.hubs.items():
        office.act(hub, machine.remind())
    office.settle()
    assert office.history == reference


@SEEDS
def test_a_hub_that_begins_anew_in_the_middle_is_turned_away(data, seed):
    office = begun(data, seed)
    restart(office, "hub.lab", Hub(Job(CONFIG), 1, secret=SECRET, nonce="another"))
    office.settle()
    lost = office.hubs["hub.lab"].reason
    assert lost.startswith(("hub.clinic stopped: hub.lab has begun another run: ", "hub.clinic continues run ")), lost
    assert office.hubs["hub.clinic"].status is None


@SEEDS
def test_after_both_hubs_were_down_the_one_that_lost_its_folder_leaves(data, reference, seed):
    """The other one holds the round, and so do all clients; with the folder back, the run ends as it would have."""
    office = begun(data, seed)
    states = dict(office.states)
    office.queues.clear()
    for index, hub in enumerate(("hub.clinic", "hub.lab")):
        office.history[hub] = [record for record in office.history[hub] if record.round < states[hub].round]
        lost = hub == "hub.lab"
        nonce, state = ("another", None) if lost else (f"nonce {index}", states[hub])
        office.machines[hub] = Hub(Job(CONFIG), index, secret=SECRET, nonce=nonce, restored=state)
    office.start()
    office.settle()
    lab, clinic = office.hubs["hub.lab"], office.hubs["hub.clinic"]
    assert lab.status == "refused"
    assert lab.reason.startswith(("hub.clinic stopped: hub.lab has begun another run: ", "hub.clinic continues run "))
    assert clinic.status is None
    assert [*clinic.missing()] == ["hub.lab"]
    assert {machine.outcome for name, machine in office.machines.items() if name.startswith("client")} == {None}
    restart(office, "hub.lab", Hub(Job(CONFIG), 1, secret=SECRET, nonce="nonce 1", restored=states["hub.lab"]))
    for _ in range(3):
        office.settle()
        for hub, machine in office.hubs.items():
            office.act(hub, machine.remind())
    assert office.settle().history == reference


def test_rows_in_any_order_give_the_same_training(data, reference):
    rng = np.random.default_rng(0)
    shuffled = {}
    for name, rows in data.items():
        order = rng.permutation(len(rows.ids))
        shuffled[name] = replace(
            rows,
            ids=[rows.ids[place] for place in order],
            labels=rows.labels[order],
            features=rows.features[order],
            held_out=rows.held_out[order],
        )
    office = Office(shuffled).run()
    for hub, history in office.history.items():
        assert [r.train_loss for r in history] == pytest.approx([r.train_loss for r in reference[hub]], rel=1e-12)


def test_a_client_cannot_make_its_hub_take_all_memory(data):
    office = Office(data, 0)
    office.start()
    while office.hubs["hub.clinic"].handshake.phase != "preparing" and office.deliver():
        pass
    hub = office.hubs["hub.clinic"]
    ready = Ready(C1, "hub.clinic", run=hub.handshake.run, feature_shape=(10**11,))
    with pytest.raises(RejectedMessage, match=r"a block for features .* is more than a message may have"):
        hub.receive(ready)


def test_settings_at_their_defaults_do_not_count():
    told = check_config({"silos": [{"name": "a", "id": "id"}], "train": {"rounds": 200}})
    assert Job(told).digest == Job(check_config({"silos": [{"name": "a"}]})).digest
    assert Job(told).digest != Job(check_config({"silos": [{"name": "a"}], "train": {"rounds": 201}})).digest


@SEEDS
def test_of_two_processes_with_one_name_the_first_one_stays(data, reference, seed):
    """Even where both hear all that is sent to their name and both answer, with other rows or another file."""
    office = Office(data, seed)
    first = office.machines[NORTH] = Client(Job(CONFIG), 1, NORTH, data[NORTH], "first")
    office.start()
    while office.hubs["hub.lab"].round < 2:
        office.deliver()
    other = replace(data[NORTH], features=changed_rows(data[NORTH])["features"])
    second = Client(Job(CONFIG), 1, NORTH, other, "second")
    third = Client(Job(with_keys(RIDGE, seed=3)), 1, NORTH, data[NORTH], "third")
    office.machines[NORTH] = Processes(first, second, third)
    for process in (second, third):
        process.receive(office.hubs["hub.lab"].handshake.sessions.who(NORTH, ""))
        office.act(NORTH, process.introduce())
    office.settle()
    assert first.outcome.status == "finished"
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert office.history == reference


class Processes:
    """Several processes behind one name."""

    def __init__(self, *machines):
        self.machines = machines

    def receive(self, message):
        answers = []
        for machine in self.machines:
            if machine.outcome is None:
                with suppress(RejectedMessage):
                    answers += machine.receive(message)
        return answers


def test_a_frame_of_an_earlier_run_ends_no_party(data, reference):
    """What a client said in an earlier run, with other settings, answers no call of this one, and names no process."""
    earlier = Office(data, 1, config=with_keys(RIDGE, seed=3)).run()
    frames = [message for message in earlier.sent if message.sender == NORTH]
    office = begun(data, 0)
    hub = office.hubs["hub.lab"]
    for frame in frames:
        try:
            office.act("hub.lab", hub.receive(frame))
        except RejectedMessage:
            continue
    # As if it had guessed the number of the call, and come first: the one that said it is told to leave, and no other.
    enrol = next(frame for frame in frames if isinstance(frame, Enrol))
    (call,) = hub.joined(NORTH)
    office.act("hub.lab", hub.receive(enrol.replace(call=call.call, session="earlier")))
    office.act("hub.lab", [call])
    office.settle()
    assert office.machines[NORTH].outcome == ("finished", "")
    assert office.history == reference


def test_late_messages_of_a_former_process_do_not_count(data, reference):
    office = begun(data, 0)
    former = Client(Job(CONFIG), 1, NORTH, data[NORTH], "former")
    hub = office.hubs["hub.lab"]
    (call,) = hub.joined(NORTH)
    (late,) = former.receive(call)
    live = Client(Job(CONFIG), 1, NORTH, data[NORTH], "live")
    restart(office, NORTH, Processes(live))
    while live.round < 2:
        assert office.deliver()
    # It was on its way all the time, and nobody has heard of that process before.
    office.act("hub.lab", hub.receive(late))
    office.settle()
    assert live.outcome == ("finished", "")
    assert office.history == reference
