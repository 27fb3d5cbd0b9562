"""Blocks that a hub learns the sum of only: the run of plain fixed point, and clients that are gone."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from support.in_process import SECRET, InProcess
from support.parts import from_client, to_client
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.config.resolve import plan
from tdcd.core.codecs.fixed_point import BeyondRangeError, FixedBlocks
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.machine.masks import ClientMasks, refuse_few_blocks
from tdcd.runtime.messages.messages import Diverged, Group
from tdcd.runtime.messages.structure import arrays_of
from tdcd.runtime.messages.wire import RejectedMessage

PROTECT = {"exchange": {"protect_blocks": True}}
GRACE = {**PROTECT, "federation": {"client_grace_s": 1.0}}
HUB, CLIENTS = "hub.lab", ("client.lab.north", "client.lab.south", "client.lab.west")
BITS = FixedBlocks().fixed.bits
OWN_ROWS = 118
"""The training rows of the first client."""


@pytest.fixture(scope="module")
def protected():
    """A run of real parties, with what they sent, and its simulation."""
    config = with_keys(RIDGE, **PROTECT)
    planned, result = simulated(config)
    return config, shards(planned), InProcess(config, shards(planned), seed=1).run(), result


def test_the_run_is_that_of_plain_fixed_point_and_the_simulation(protected, tmp_path, monkeypatch):
    _, data, masked, result = protected
    (tmp_path / "plain_blocks.py").write_text(
        "from tdcd import Variant\nfrom tdcd.core.codecs.fixed_point import FixedBlocks\n"
        "plain = Variant(block_exchange=FixedBlocks())\n"
    )
    monkeypatch.delitem(sys.modules, "plain_blocks", raising=False)
    train = {"variant": "plain_blocks:plain", "folder": str(tmp_path)}
    unmasked = InProcess(with_keys(RIDGE, train=train), data, seed=2).run()
    both = [[record.to_json() for record in office.history[HUB]] for office in (masked, unmasked)]
    assert both[0] == both[1]
    assert_same_history(masked, result)
    _, exact = simulated(with_keys(RIDGE))
    for ours, theirs in zip(result.history, exact.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, abs=100 * 2.0**-BITS)


@pytest.mark.parametrize(
    "sections",
    [
        {"silos": RIDGE["silos"][:1], **PROTECT},
        {**PROTECT, "train": {"hub_optimizer": "momentum", "momentum": 0.5, "overlap": 1}},
        {"exchange": {"protect_blocks": True, "block_epsilon": 4.0, "block_clip": 0.01}},
    ],
)
def test_so_it_is_of_one_silo_alone_and_with_a_hub_optimizer(sections):
    config = with_keys(RIDGE, **sections)
    planned, result = simulated(config)
    assert_same_history(InProcess(config, shards(planned)).run(), result)


def test_what_a_hub_gets_says_nothing_without_the_masks(protected):
    blocks = [m for m in protected[2].sent if from_client(m, "block") and m.receiver == HUB]
    numbers = np.unique(np.concatenate([leaf.ravel() for m in blocks for leaf in arrays_of(m.arrays).values()]))
    bits = np.unpackbits(numbers.view(np.uint8)).reshape(-1, 32)
    assert len(numbers) > 50
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


def played_without(config, data, is_lost):
    """A federation in which some messages are lost, played until nothing happens any more."""
    office = InProcess(config, data, seed=3)
    office.start()
    is_over = False
    while not is_over:
        for queue in office.queues.values():
            for raw in [raw for raw in queue if is_lost(office, raw)]:
                queue.remove(raw)
        is_over = not office.deliver()
    return office


def test_a_client_that_is_gone_is_left_out_of_a_sum_with_fresh_masks(protected):
    """West stops answering in round 4, in the middle of its steps: the others are asked again."""
    data = protected[1]
    config = with_keys(RIDGE, **GRACE)
    west = b"\xa4kind\xa4part\xa6sender\xaf" + CLIENTS[2].encode()

    def is_lost(office, raw):
        return office.machines[HUB].round >= 4 and west in raw and b"\xa4flow\xa5block" in raw

    office = played_without(config, data, is_lost)
    hub = office.machines[HUB]
    assert (hub.round, hub.phase) == (4, "stepping")
    before = {m.sender: m for m in office.sent if from_client(m, "block") and m.round == 4 and m.receiver == HUB}
    (question,) = hub.open_questions()
    office.act(HUB, hub.overdue(question))
    asked = [m for m in office.sent if to_client(m, "received") and m.round == 4 and m.group.clients == (0, 1)]
    assert sorted(m.receiver for m in asked) == [*CLIENTS[:2]]
    while office.deliver():
        pass
    again = {m.sender: m for m in office.sent if from_client(m, "block") and m.round == 4 and m.group.clients == (0, 1)}
    for client in CLIENTS[:2]:
        for name, leaf in arrays_of(again[client].arrays).items():
            assert (leaf != arrays_of(before[client].arrays)[name]).all()
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert office.history[HUB][-1].unscored == [CLIENTS[2]]


def test_the_last_two_are_not_let_go(protected):
    """The sum over one client is its block."""
    config = with_keys(RIDGE, **GRACE)
    gone = [b"sender\xb0" + CLIENTS[1].encode(), b"sender\xaf" + CLIENTS[2].encode()]
    office = played_without(
        config, protected[1], lambda office, raw: office.machines[HUB].round >= 4 and any(one in raw for one in gone)
    )
    hub = office.machines[HUB]
    office.act(HUB, hub.overdue(hub.open_questions()[0]))
    assert not any(question.round == hub.round for question in hub.open_questions() if question.receiver != CLIENTS[1])
    assert len(hub.left_out()) == 1


def test_a_block_with_the_masks_of_another_group_is_refused(protected):
    office = protected[2]
    sent = [m for m in office.sent if from_client(m, "block") and m.sender == CLIENTS[0]][-1]
    hub = office.machines[HUB]
    steps = [m for m in office.sent if to_client(m, "received") and m.receiver == CLIENTS[0]][-1]
    questions = hub.rounds.questions
    # The run is over: as if it were not, with a question of another group.
    questions.asked, questions._are_over = {CLIENTS[0]: steps.replace(group=Group((0, 1), 100))}, False
    with pytest.raises(RejectedMessage, match="for the sum of other clients' blocks"):
        questions.receive(sent)
    questions.end()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda group: None, "does not say whose blocks are added up"),
        (lambda group: Group((0,), group.rows), "the sum would be of 1 client's block: at least 2 are needed"),
        (lambda group: Group((1, 2), group.rows), "this one among them"),
        (lambda group: Group((0, 0, 1), group.rows), "must be clients of the silo"),
        (lambda group: Group((0, 9), group.rows), "must be clients of the silo"),
        (lambda group: Group(group.clients, 1), "at least the client's own rows"),
        (lambda group: Group(group.clients, OWN_ROWS), "no other client in 'group' has rows"),
    ],
)
def test_a_client_refuses_sums_that_would_show_its_block(protected, change, text):
    client, steps = _asked(protected)
    with pytest.raises(RejectedMessage, match=text):
        client.receive(steps.replace(group=change(steps.group)))


def _first(protected, kind):
    return next(m for m in protected[2].sent if m.receiver == CLIENTS[0] and m.kind == kind)


def _welcome(protected):
    return _first(protected, "welcome")


def _begin(protected):
    return _first(protected, "block")


def _asked(protected):
    """A client that has just been sent a round's first message, and the question that follows."""
    _, data, office, _ = protected
    client = Client(office.machines[HUB].job, 1, CLIENTS[0], data[CLIENTS[0]], "")
    client.receive(_welcome(protected))
    client.receive(_begin(protected))
    return client, _first(protected, "received")


def test_the_masks_follow_from_the_whole_group(protected):
    """Two sums with the same clients and other weights have different masks: their difference says nothing."""
    client, steps = _asked(protected)
    masks = [client._masks._make(group) for group in (steps.group, Group(steps.group.clients, steps.group.rows // 2))]
    assert (masks[0].of("block", 0, (50,)) != masks[1].of("block", 0, (50,))).any()


def test_a_silo_in_which_too_few_have_rows_is_refused(protected):
    job = protected[2].machines[HUB].job
    refuse_few_blocks(job, HUB, [3, 2, 1])
    with pytest.raises(IncompatibleParties, match=r"training rows are at only 2 clients of hub\.lab, and 3 are needed"):
        refuse_few_blocks(job, HUB, [3, 0, 1])


def test_products_of_the_only_client_with_rows_of_a_silo_are_not_sent():
    job = Job(with_keys(RIDGE, **PROTECT))
    masks = ClientMasks(job, 1, CLIENTS[0], Keys.of_secret(CLIENTS[0], SECRET))
    # Its silo has 40 of 100 samples, all of them at this client.
    alone = SimpleNamespace(num_rows=40, silo_rows=40, num_samples=100)
    with pytest.raises(RejectedMessage, match="the sum would be of this client's products"):
        masks.products(alone, np.eye(2))


def test_a_client_answers_a_round_once(protected):
    """Smaller sums may follow when somebody is gone; larger ones, or the same with other numbers, may not."""
    client, steps = _asked(protected)
    (whole,), (again,) = client.receive(steps), client.receive(steps)
    assert whole is again
    smaller = steps.replace(group=Group((0, 2), steps.group.rows - 50))
    with pytest.raises(RejectedMessage, match="leaves clients out, which no federation"):
        client.receive(smaller)
    client._masks._may_leave_out = True
    (part,) = client.receive(smaller)
    assert part.group == smaller.group
    with pytest.raises(RejectedMessage, match="clients that were not in the round's sum before"):
        client.receive(steps)
    # A new welcome does not make it forget.
    client.receive(_welcome(protected))
    client.receive(_begin(protected))
    with pytest.raises(RejectedMessage, match="clients that were not in the round's sum before"):
        client.receive(steps)
    first, question = _asked(protected)
    first.receive(question)
    other, _ = _asked(protected)
    other._masks._sent = first._masks._sent
    array = question.arrays["phi"]
    changed = {"phi": type(array).of(array.values + 1)}
    with pytest.raises(RejectedMessage, match="another block of a round that was answered"):
        other.receive(question.replace(arrays=changed))


def test_a_hub_cannot_put_keys_of_its_own_in_the_place_of_its_clients(protected):
    _, data, office, _ = protected
    client = Client(office.machines[HUB].job, 1, CLIENTS[0], data[CLIENTS[0]], "")
    welcome = next(m for m in office.sent if m.kind == "welcome" and m.receiver == CLIENTS[0])
    forged = Keys.of_secret(CLIENTS[1], b"the hub's own").pair("blocks").card()
    client.receive(welcome.replace(cards={**welcome.cards, CLIENTS[1]: forged}))
    assert client.outcome.status == "refused"
    assert f"the key for masks of {CLIENTS[1]} is not signed" in client.outcome.reason


def test_a_block_beyond_the_range_stops_everybody():
    sections = {**PROTECT, "exchange": {"protect_blocks": True, "mask_range": 0.01}}
    config = with_keys(RIDGE, **sections)
    with pytest.raises(BeyondRangeError, match=r"silo '\w+': a client's block reached .*mask_range = 0.01"):
        simulated(config)
    office = InProcess(config, shards(plan(config))).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert any("its block reached" in end.reason and "mask_range" in end.reason for end in office.ends.values())


def test_a_block_that_is_not_finite_diverges():
    """In one step from within the range to what is not a number."""
    config = with_keys(RIDGE, dtype="float32", train={"step_size": 3e38, "rounds": 3}, **PROTECT)
    office = InProcess(config, shards(plan(config))).run()
    assert any(isinstance(m, Diverged) and not m.reason for m in office.sent)
    assert {end.status for end in office.ends.values()} == {"diverged"}


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (
            {**PROTECT, "silos": [{"name": "a", "clients": 2}, {"name": "b", "clients": 3}]},
            r"every silo needs 3 clients.* fewer at a \(2\)",
        ),
        ({"exchange": {"protect_blocks": True, "block_bits": 8}}, "exchange.block_bits = 8: does not go with"),
        (
            {**PROTECT, "train": {"participation": 0.5}},
            "train.participation = 0.5: does not go with exchange.protect_b",
        ),
        ({**PROTECT, "train": {"algorithm": "sgd"}}, "exchange.protect_blocks = True: goes with train.algorithm"),
    ],
)
def test_what_cannot_work_gets_a_sentence(sections, text):
    with pytest.raises(ConfigError, match=text):
        with_keys(RIDGE, **sections)


@pytest.mark.parametrize("answered", range(4))
@pytest.mark.parametrize("sections", [PROTECT, {"silos": RIDGE["silos"][1:], **PROTECT}])
def test_a_client_that_comes_back_with_another_key_makes_all_masks_anew(sections, answered):
    """As after a revocation: however many have sent their block of the round, the run is that without a break."""
    config = with_keys(RIDGE, **sections)
    data = shards(plan(config))
    undisturbed, fresh = InProcess(config, data, seed=5).run(), InProcess(config, data, seed=5)
    hub: Hub = fresh.machines[HUB]
    fresh.start()
    while not (hub.round == 2 and hub.phase == "stepping" and len(hub.rounds.questions._answers) >= min(answered, 2)):
        assert fresh.deliver()
    for pair in [pair for pair in fresh.queues if CLIENTS[0] in pair]:
        fresh.queues[pair].clear()
    silo = fresh.machines[HUB].job.hubs.index(HUB)
    keys = Keys(CLIENTS[0], b"new", Keys.of_secret(CLIENTS[0], bytes.fromhex(hub.job.digest)).signer)
    fresh.machines[CLIENTS[0]] = Client(hub.job, silo, CLIENTS[0], data[CLIENTS[0]], "new", keys)
    fresh.act(HUB, hub.joined(CLIENTS[0]))
    for _ in range(4):
        while fresh.deliver():
            pass
        fresh.act(HUB, hub.remind())
    assert hub.handshake.renewals == 1
    assert fresh.ends[HUB].status == "finished"
    both = [[record.to_json() for record in office.history[HUB]] for office in (fresh, undisturbed)]
    assert both[0] == both[1]
