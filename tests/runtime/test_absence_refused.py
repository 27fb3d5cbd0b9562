"""What nobody may say of clients that a hub goes on without."""

import numpy as np
import pytest
from test_absence import A2, B1, C1, UNEQUAL, stopped

from support.altering import with_fields
from support.simulated import with_keys
from tdcd.runtime.messages.messages import ScoresFacts
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode

pytestmark = pytest.mark.quick


def refusal(machine, message, **fields):
    data = with_fields(message, **fields) if fields else encode(message)
    with pytest.raises(RejectedMessage) as refused:
        machine.receive(decode(data, sender=message.sender, receiver=message.receiver))
    return str(refused.value)


def changed(message, **arrays):
    return message.replace(arrays={**message.arrays, **{name: Array.of(value) for name, value in arrays.items()}})


def heard_by(office, receiver, kind, sender="hub.b"):
    """The machine, and a message to it that it has not got yet."""
    while True:
        queue = office.queues[sender, receiver]
        if queue and (message := decode(queue[0], sender=sender, receiver=receiver)).kind == kind:
            return office.machines[receiver], message
        assert office.deliver()


@pytest.fixture
def early():
    """A federation in its third round."""
    return stopped({}, until=lambda office: min(hub.round for hub in office.hubs.values()) >= 2)


def test_a_hub_refuses_masks_that_do_not_fit(early):
    hub, message = heard_by(early, "hub.a", "phi")
    size = UNEQUAL.train.local_steps * UNEQUAL.train.batch_size
    for wrong, text in (
        (np.zeros(size - 1, np.uint8), f"'absent' is uint8 [{size - 1}], not uint8 [{size}]"),
        (np.zeros(size), f"'absent' is float64 [{size}], not uint8 [{size}]"),
        (np.full(size, 2, np.uint8), "'absent' must be 0 or 1 for each sample"),
    ):
        assert refusal(hub, changed(message, absent=wrong)) == text
    hub, message = heard_by(early, "hub.a", "scores")
    for name in ("train", "test"):
        size = len(message.arrays[name].values)
        wrong = changed(message, **{f"{name}_absent": np.full(size, 255, np.uint8)})
        assert refusal(hub, wrong) == f"'{name}_absent' must be 0 or 1 for each sample"


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"absent": []}, "it is not a message: Expected `object`, got `array` - at `$.facts.absent`"),
        ({"absent": {B1: [4]}}, "'absent' must be the rounds before this one, in order, by client"),
        ({"absent": {B1: [-1]}}, "'absent' must be the rounds before this one, in order, by client"),
        ({"absent": {B1: [2, 1]}}, "'absent' must be the rounds before this one, in order, by client"),
        ({"absent": {B1: [True]}}, "it is not a message: Expected `int`, got `bool` - at `$.facts.absent[...][0]`"),
        ({"absent": {B1: []}}, "'absent' must be the rounds before this one, in order, by client"),
        ({"absent": {A2: [1]}}, f"'{A2}' is no client of hub.b"),
        ({"unscored": {B1: 1}}, "it is not a message: Expected `array`, got `object` - at `$.facts.unscored`"),
        ({"unscored": [1]}, "it is not a message: Expected `str`, got `int` - at `$.facts.unscored[0]`"),
        ({"unscored": [C1]}, f"'{C1}' is no client of hub.b"),
        ({"unscored": [B1, B1]}, "'unscored' names a client twice, or all clients"),
        ({"unscored": [B1, "client.b.c2"]}, "'unscored' names a client twice, or all clients"),
    ],
)
def test_a_hub_refuses_claims_about_another_ones_clients_that_cannot_be(early, claims, text):
    hub, message = heard_by(early, "hub.a", "scores")
    facts = {"type": "scores", "penalty": message.facts.penalty, **claims}
    assert refusal(hub, message, facts=facts) == text


@pytest.mark.parametrize("name", ["absent", "present", "rows"])
def test_a_client_refuses_masks_and_counts_that_do_not_fit(early, name):
    client, message = heard_by(early, A2, "received", "hub.a")
    rows = len(message.arrays["phi"].values)
    batches, held = UNEQUAL.train.local_steps, len(early.data[A2].ids)
    size = UNEQUAL.train.batch_size
    good = {
        "absent": np.zeros(rows, np.uint8),
        "present": np.full(batches, size, np.int32),
        "rows": np.array([early.hubs["hub.a"].handshake.sample_index.num_samples]),
    }
    limits = f"'present' must be at least the client's own samples that are, and {size} at most"
    known = "'rows' must be at least the client's own rows, and the number of samples at most"
    wrong = {
        "absent": [
            (np.zeros(rows + 1, np.uint8), f"'absent' is uint8 [{rows + 1}], not uint8 [{rows}]"),
            (np.full(rows, 7, np.uint8), "'absent' must be 0 or 1 for each sample"),
        ],
        "present": [
            (np.full(batches, size + 1, np.int32), limits),
            (np.zeros(batches, np.int32), limits),
            (np.full(batches, -1, np.int32), limits),
            (np.full(batches + 1, size, np.int32), f"'present' is int32 [{batches + 1}], not int32 [{batches}]"),
        ],
        "rows": [(np.array([rows]), known) for rows in (0, 10**9, -held)],
    }
    for value, text in wrong[name]:
        assert refusal(client, changed(message, **{**good, name: value})) == text
    less = {key: value for key, value in good.items() if key != name}
    assert refusal(client, changed(message, **less)) == f"it has no array '{name}'"
    assert [answer.kind for answer in client.receive(changed(message, **good))] == ["block"]


def test_no_client_is_left_out_by_others_without_the_setting():
    config = with_keys(UNEQUAL.model_dump(), federation={"client_grace_s": None})
    office = stopped({}, config, until=lambda office: office.hubs["hub.a"].round >= 2)
    text = "it leaves clients out, and federation.client_grace_s is not set"
    hub, message = heard_by(office, "hub.a", "phi")
    size = UNEQUAL.train.local_steps * UNEQUAL.train.batch_size
    assert refusal(hub, changed(message, absent=np.zeros(size, np.uint8))) == text
    client, message = heard_by(office, A2, "received", "hub.a")
    absent, present = (
        np.zeros(len(message.arrays["phi"].values), np.uint8),
        np.zeros(UNEQUAL.train.local_steps, np.int32),
    )
    assert refusal(client, changed(message, absent=absent, present=present, rows=np.array([1]))) == text
    hub, message = heard_by(office, "hub.a", "scores")
    assert refusal(hub, message.replace(facts=ScoresFacts(penalty=0.0, unscored=[B1]))) == text
