"""Parties that lie where one silo alone has labels: refused with a reason, and the run ends as it should."""

import re

import numpy as np
import pytest
from test_hostile import (
    C1,
    HUB,
    LAB,
    OPTIONAL,
    WRONG_ARRAYS,
    Attacked,
    along,
    altered,
    arrays_at,
    assert_same_run,
    kinds,
    run,
    texts,
    with_array,
)
from test_odd_words import Recorded, crashes

from support.parts import between_hubs
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import FiguresFacts, Hello, Outputs, Want
from tdcd.runtime.messages.structure import Array, EvaluationFigures
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode

BANK = "hub.bank"
SILOS = [*RIDGE["silos"], {"name": "bank", "clients": 1}]
CONFIG = with_keys(RIDGE, silos=SILOS, train={"rounds": 2}, federation={"labels": "lab"})


@pytest.fixture(scope="module")
def data():
    return shards(plan(CONFIG))


@pytest.fixture(scope="module")
def reference(data):
    return run(Attacked(CONFIG, data, lambda message: [])).history


@pytest.mark.parametrize("wrong", WRONG_ARRAYS, ids=lambda wrong: wrong.__name__)
def test_a_wrong_array_is_refused(data, reference, wrong):
    def attack(message):
        out = []
        for path, array in arrays_at(message).items():
            is_number = array.values.dtype.kind == "f" or wrong.__name__ not in ("not_a_number", "infinite")
            is_needed = wrong.__name__ != "without" or path[0] not in OPTIONAL
            if array.values.size and is_number and is_needed:
                out += along(message, encode(with_array(message, path, wrong(array.values))))
        return out

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert not office.refused
    assert kinds(office) >= {"slope", "phi", "scores", "received"}
    for text in texts(office):
        assert re.fullmatch(WRONG_ARRAYS[wrong], text), text


def test_weights_that_cannot_be_are_refused():
    """Fewer, below zero, none; and to those who do not wait for any."""
    keys = {"silos": SILOS, "federation": {"labels": "lab"}, "data": {"source": "breast_cancer"}}
    config = with_keys(RIDGE, **keys, train={"rounds": 2, "class_weights": "balanced"})
    data = shards(plan(config))

    def attack(message):
        if message.kind == "welcome" and message.receiver == C1:
            return altered(message, weights=Array.of(np.ones(len(data[C1].ids))))
        if message.kind not in ("slope", "received"):
            return []
        if "weights" not in message.arrays:
            rows = message.arrays["phi"].values[:, 0]
            return altered(message, arrays={**message.arrays, "weights": Array.of(np.ones_like(rows))})
        values = message.arrays["weights"].values
        wrong = [None, values[1:], -values, values * np.nan]
        return [
            step for one in wrong for step in along(message, encode(with_array(message, ("arrays", "weights"), one)))
        ]

    office = run(Attacked(config, data, attack))
    assert_same_run(office, run(Attacked(config, data, lambda message: [])).history)
    assert not office.refused
    assert kinds(office) == {"welcome", "slope", "received"}
    expected = "it has no array 'weights'|'weights' are of samples that all weigh the same|'weights' must be at least 0"
    expected += r"|'weights' has numbers that are not finite|'weights' is float64 \[.*\], not float64 \[.*\]"
    expected += "|it has weights of a silo without labels"
    found = {re.fullmatch(expected, text) and re.sub(r"is float64.*", "", text) for text in texts(office)}
    assert len(found) == len(expected.split("|"))
    assert None not in found


def out_of_the_star(message):
    """A hub says to another one what is only for, or only from, the hub with the labels."""
    if not between_hubs(message, "phi", "scores", "slope", "figures"):
        return []
    sender, receiver = message.sender, message.receiver
    third = next(hub for hub in (HUB, LAB, BANK) if hub not in (sender, receiver))
    turned = [(receiver, sender, encode(message.replace(sender=receiver, receiver=sender)))]
    return turned if sender == LAB else [(sender, third, encode(message.to(third))), *turned]


def test_no_party_sends_outside_the_star(data, reference):
    office = run(Attacked(CONFIG, data, out_of_the_star))
    assert_same_run(office, reference)
    assert not office.refused
    assert kinds(office) == {"phi", "scores", "slope", "figures"}
    assert "accepted" not in texts(office)
    assert any(text.startswith("a hub was not to send '") for text in texts(office))


def odd_figures(message):
    if message.kind != "figures":
        return []
    found, nobody = message.facts.figures, {"client.lab.nobody": [0]}
    changes = [
        {"metrics": {}},
        {"metrics": {**found.metrics, "more": {}}},
        {"metrics": {"train": {"rmse": 1.0}}},
        {"metrics": {"train": found.metrics["train"]}},
        {"test_loss": None},
    ]
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    facts = [FiguresFacts(figures=EvaluationFigures(**fields | change)) for change in changes]
    facts += [FiguresFacts(figures=found, absent=nobody), FiguresFacts(figures=found, unscored=["client.lab.north"])]
    return [step for one in facts for step in altered(message, facts=one)]


def test_a_line_of_the_history_that_cannot_be_is_refused(data, reference):
    office = run(Attacked(CONFIG, data, odd_figures))
    assert_same_run(office, reference)
    assert texts(office) == {
        "'metrics' must have rmse and r2 of 'train', and maybe of 'test'",
        "'test_loss' goes with metrics of the held-out samples",
        "it leaves clients out, and federation.client_grace_s is not set",
    }


def test_a_client_without_labels_neither_enrols_with_any_nor_takes_any(data, reference):
    def attack(message):
        if message.kind == "enrol" and message.sender == C1:
            names = ["yes"] * len(message.ids)
            return altered(message, labels=Array.of(np.zeros(len(names)))) + altered(message, label_names=names)
        if message.kind == "welcome" and message.receiver == C1:
            return altered(message, labels=Array.of(np.zeros(len(data[C1].ids))))
        return []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert texts(office) == {
        "it has labels, and federation.labels names another silo",
        "it has labels of a silo without any",
    }


@pytest.mark.parametrize("is_over", [False, True])
def test_a_hub_gives_parts_only_to_those_who_are_sent_them(data, is_over):
    office = Attacked(CONFIG, data, lambda message: [])
    office.start()
    while is_over or office.hubs[LAB].round < 1 or office.hubs[LAB].phase != "stepping":
        if not office.deliver():
            break
    for owner, asker, what in ((LAB, HUB, "phi"), (LAB, BANK, "scores"), (HUB, BANK, "phi")):
        want = Want(asker, owner, 0, office.hubs[LAB].handshake.run, what=what)
        with pytest.raises(RejectedMessage, match=rf"^it is not sent '{what}'$"):
            office.machines[owner].receive(decode(encode(want), sender=asker, receiver=owner))
    for owner, asker, what in ((LAB, BANK, "slope"), (HUB, LAB, "phi"), (LAB, HUB, "figures")):
        want = Want(asker, owner, 0, office.hubs[LAB].handshake.run, what=what)
        (answer,) = [m for m in office.machines[owner].receive(want) if m.kind == what]
        (sent,) = [m for m in office.sent if (m.sender, m.receiver, m.kind, m.round) == (owner, asker, what, 0)]
        assert encode(answer) == encode(sent)


class Lying(Attacked):
    """One hub's greeting is another one, whenever it is sent."""

    def __init__(self, config, data, hub, **changes):
        super().__init__(config, data, lambda message: [])
        self.hub, self.changes = hub, changes

    def act(self, party, instructions):
        changed = [
            one.replace(**self.changes) if isinstance(one, Hello) and one.sender == self.hub else one
            for one in instructions
        ]
        super().act(party, changed)


@pytest.mark.parametrize(
    ("hub", "changes", "text"),
    [
        (LAB, {"outputs": None}, "hub.lab does not say what its labels ask for"),
        (LAB, {"outputs": Outputs("squared", 3)}, "hub.lab asks for 3 outputs, which does not fit 'squared'"),
        (LAB, {"outputs": Outputs("softmax", 2**31 - 1)}, "hub.lab asks for 2,147,483,647 outputs"),
        (LAB, {"labels": "0" * 64}, "have different labels"),
        (BANK, {"outputs": Outputs("squared", 1)}, "hub.bank says what labels it has"),
        (BANK, {"held_out": "0" * 64}, "hold out different samples"),
    ],
)
def test_a_greeting_that_cannot_be_stops_everybody(data, hub, changes, text):
    office = run(Lying(CONFIG, data, hub, **changes))
    assert {machine.status for machine in office.hubs.values()} == {"refused"}
    assert any(text in machine.reason for machine in office.hubs.values())


@pytest.fixture(scope="module")
def recorded(data):
    """Where the clinic, which is attacked, has no labels; and where it alone has them."""
    at_clinic = with_keys(RIDGE, silos=SILOS, train={"rounds": 2}, federation={"labels": "clinic"})
    runs = [Recorded(CONFIG, data), Recorded(at_clinic, shards(plan(at_clinic)))]
    for one in runs:
        run(one)
        assert {end.status for end in one.ends.values()} == {"finished"}
    return runs


@pytest.mark.parametrize(
    ("party", "kind"),
    [
        *((HUB, kind) for kind in ("slope", "figures", "hello")),
        *((C1, kind) for kind in ("welcome", "received")),
    ],
)
def test_odd_words_end_no_process(recorded, party, kind):
    assert crashes(recorded, party, kind) == set()
