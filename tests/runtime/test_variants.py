"""Members of the TDCD family in the real federation: its hubs and clients give the simulation's history."""

import json
import runpy
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from support.in_process import InProcess, largest_difference
from support.parts import between_hubs
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.config.resolve import plan
from tdcd.core.codecs.codec import WIRE_DTYPES, Sending, seed_words
from tdcd.core.variant import Variant
from tdcd.records.history import flat
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.structure import arrays_of, named
from tdcd.runtime.messages.wire import decode, encode
from tdcd.runtime.storage.checkpoint import Checkpoints

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = '''
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tdcd import Variant
from tdcd.core.family.labels import LabelsAt
from tdcd.core.knowledge import Knowledge
from tdcd.core.update import Average


@dataclass(frozen=True)
class Frozen(Knowledge):
    """The slope of the loss stays as it was when the round began; it is the hub that adds the labels."""

    def needs_phi_start(self, silo):
        return True

    def received(self, silo, own, others, labels, objective):
        return others - labels[..., None]

    def losses(self, silo, phi, known, objective):
        return jnp.sum((known.phi_start + known.received) * phi, axis=-1)


@dataclass(frozen=True)
class Late:
    depth: int = 1

    def age(self, silo, round_index):
        return jnp.minimum(round_index, 1)

    def period(self, silo):
        return 1


@dataclass(frozen=True)
class Half:
    def encode(self, phi, sending):
        return {"phi": phi.astype(jnp.float16)}

    def decode(self, sent, sending):
        return sent["phi"].astype(jnp.float64)

    def layout(self, shape, dtype):
        return {"phi": ("float16", shape)}


@dataclass(frozen=True)
class Halfway(Average):
    def step(self, block, average, state):
        return jax.tree.map(lambda old, new: jnp.add(old, new) / 2, block, average), state


@dataclass(frozen=True)
class Laplace:
    """Noise of another distribution, from the private stream: evaluations included."""

    is_private = True

    @property
    def of_scores(self):
        return self

    def encode(self, phi, sending):
        return {"phi": phi + 0.1 * jax.random.laplace(sending.private_key(phi), phi.shape, phi.dtype)}

    def decode(self, sent, sending):
        return sent["phi"]

    def layout(self, shape, dtype):
        return {"phi": (dtype, shape)}


@dataclass(frozen=True)
class Averaged:
    """Steps along the mean of a client's gradients of all rounds, which its hub keeps."""

    def memory(self, block):
        return {"sum": jax.tree.map(lambda leaf: 0 * leaf, block), "count": 0 * next(iter(block.values())).sum()}

    def start(self, block, iteration):
        return self.memory(block)

    def resume(self, block, iteration, memory):
        return memory

    def step(self, block, gradient, state, step_size):
        summed = jax.tree.map(jnp.add, state["sum"], gradient)
        count = state["count"] + 1
        moved = jax.tree.map(lambda old, new: old - step_size * new / count, block, summed)
        return moved, {"sum": summed, "count": count}

    def carry(self, state):
        return state


frozen = Variant(knowledge=Frozen())
laplace = Variant(exchange=Laplace())
averaged = Variant(update=Averaged())
halfway = Variant(hub_update=Halfway())
half = Variant(exchange=Half())
late = Variant(timing=Late())
at_one = Variant(knowledge=LabelsAt(1))
five = 5


def made():
    return Variant(knowledge=Frozen())
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    return str(tmp_path)


MEMBERS = {
    "client momentum": {"optimizer": "momentum", "momentum": 0.8},
    "client adam, cosine": {"optimizer": "adam", "schedule": "cosine", "step_size": 0.02},
    "linear schedule": {"schedule": "linear"},
    "client adam, clipped": {"optimizer": "adam", "clip": 0.05, "step_size": 0.02},
    "clipped": {"clip": 0.1},
    "hub momentum": {"hub_optimizer": "momentum", "momentum": 0.5},
    "hub adam": {"hub_optimizer": "adam", "hub_step_size": 0.05, "minibatches": "reused"},
    "both": {"optimizer": "momentum", "hub_optimizer": "momentum", "hub_step_size": 0.7, "momentum": 0.3},
    "8 bits": {"variant": "own_variant:EIGHT_BITS", "folder": str(EXAMPLES)},
    "frozen slopes": {"variant": "own_parts:frozen"},
    "a timing of one's own": {"variant": "own_parts:late"},
    "noise of one's own": {"variant": "own_parts:laplace"},
    "a memory of each client of one's own": {"variant": "own_parts:averaged"},
    "an update that inherits from the average": {"variant": "own_parts:halfway"},
    "made by a function": {"variant": "own_parts:made"},
}


@pytest.fixture(scope="module")
def plain():
    return simulated(with_keys(RIDGE))[1]


ENSEMBLE = {"block": "ensemble", "hidden": [4], "members": 2}
PARTS = {
    "update": ({"train": {"variant": "support.members:lasting"}},),
    "hub_update": ({"train": {"hub_optimizer": "momentum", "momentum": 0.5}}, {"train": {"step_size": "auto"}}),
    "exchange": ({"train": {"variant": "support.members:noisy"}},),
    "client_exchange": ({"exchange": {"phi_bits": 8}}, {"exchange": {"phi_bits": 8}, "model": ENSEMBLE}),
    "block_exchange": ({"exchange": {"protect_blocks": True}}, {"exchange": {"block_bits": 8}}),
    "timing": ({"train": {"overlap": 1}}, {"train": {"overlap": 2}, "model": ENSEMBLE}),
    "knowledge": ({"federation": {"labels": "lab"}},),
    "participation": ({"train": {"participation": 0.5}},),
    "dropout": ({"train": {"silo_dropout": 0.3}},),
}
"""By part of a variant: configurations in which it is not the default."""


@pytest.mark.parametrize(("part", "keys"), [(part, keys) for part, cases in PARTS.items() for keys in cases])
def test_every_part_of_the_family_is_open_to_real_parties(part, keys):
    """With the simulation's lines to the last byte that was sent, and to the last bits of the losses."""
    assert [*PARTS] == [field.name for field in fields(Variant)]
    config = with_keys(RIDGE, **{**keys, "train": {"rounds": 4, **keys.get("train", {})}})
    planned, result = simulated(config)
    assert part in planned.variant.changed
    office = InProcess(config, shards(planned), seed=1).run()
    assert_same_history(office, result)
    for history in office.history.values():
        for ours, theirs in zip(history, result.history, strict=True):
            for own, its in zip(numbers(ours), numbers(theirs), strict=True):
                assert own == pytest.approx(its, rel=1e-13)


def numbers(record):
    """Everything in a line but its time."""
    return [*flat(json.loads(record.without_seconds())).values()]


def test_labels_may_be_at_one_silo_by_a_variant(folder, plain):
    config = with_keys(RIDGE, train={"folder": folder, "variant": "own_parts:at_one"})
    planned, result = simulated(config)
    assert_same_history(InProcess(config, shards(planned), seed=1).run(), result)
    assert result.history[-1].train_loss == pytest.approx(plain.history[-1].train_loss, rel=1e-12)


@pytest.mark.parametrize("name", MEMBERS)
def test_same_history_and_blocks_as_the_simulation(name, folder, plain):
    config = with_keys(RIDGE, train={"folder": folder, **MEMBERS[name]})
    planned, result = simulated(config)
    assert_same_history(InProcess(config, shards(planned), seed=1).run(), result)
    assert abs(result.history[-1].train_loss - plain.history[-1].train_loss) > 1e-7


def test_the_ledger_counts_what_is_sent(plain):
    """One byte per number of phi and the width of each column, in the histories and in the messages."""
    config = with_keys(RIDGE, train=MEMBERS["8 bits"])
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    samples, pairs, rounds = 4 * 32, 2, config.train.rounds
    assert plain.history[-1].bytes.hub_to_hub == rounds * pairs * 8 * samples
    for history in (result.history, *office.history.values()):
        assert history[-1].bytes.hub_to_hub == rounds * pairs * (samples + 8)
        assert history[-1].bytes.client_to_hub == plain.history[-1].bytes.client_to_hub
    sent = [message for message in office.sent if between_hubs(message, "phi")]
    assert sum(message.payload_bytes for message in sent) == rounds * pairs * (samples + 8)


def test_the_example_rounds_without_bias():
    """Dithered numbers are off by half a width at most, and by nothing on average."""
    own = runpy.run_path(str(EXAMPLES / "own_variant.py"))
    exchange, phi = own["EightBits"](), np.random.default_rng(0).normal(size=(40, 50, 2)).astype(np.float32)
    errors = []
    for round_index in range(20):
        sending = Sending(seed_words(3), np.int32(round_index), 1)
        sent = exchange.encode(phi, sending)
        assert {name: (str(part.dtype), part.shape) for name, part in sent.items()} == exchange.layout(
            phi.shape, "float32"
        )
        errors.append((exchange.decode(sent, sending) - phi) / sent["width"])
    assert np.abs(errors).max() < 0.5 + 1e-3
    assert abs(np.mean(errors)) < 5 * 12**-0.5 / np.size(errors) ** 0.5


@pytest.mark.optimised
@pytest.mark.parametrize("keys", [MEMBERS["both"], MEMBERS["hub adam"]], ids=["momentum", "adam"])
def test_a_hub_that_comes_back_from_its_checkpoint_continues_bit_for_bit(keys, tmp_path):
    config = with_keys(RIDGE, train={**keys, "rounds": 8})
    data = shards(plan(config))
    whole = InProcess(config, data).run()
    broken = InProcess(config, data)
    broken.start()
    while "hub.lab" not in broken.states or broken.states["hub.lab"].round < 4:
        broken.deliver()
    # The state goes through the file that a restart reads.
    Checkpoints(tmp_path, "hub.lab").save(broken.states["hub.lab"])
    state = Checkpoints(tmp_path, "hub.lab").newest
    assert state.memory
    lost = broken.history["hub.lab"]
    broken.history["hub.lab"] = [record for record in lost if record.round < state.round]
    broken.come_back("hub.lab", state)
    assert {end.status for end in broken.ends.values()} == {"finished"}
    for hub in whole.blocks():
        assert largest_difference(whole.blocks()[hub], broken.blocks()[hub]) == 0
        assert [r.to_json() for r in broken.history[hub]] == [r.to_json() for r in whole.history[hub]]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"variant": "own_parts:half"},
            r"train.variant: Half\(\) sends 'phi' as float16, but hubs send only float64",
        ),
        ({"variant": "own_parts:five"}, "train.variant = 'own_parts:five': its type is int, not tdcd.Variant"),
        ({"variant": "own_parts:six"}, "train.variant = 'own_parts:six': .*no attribute 'six'"),
        ({"variant": "nowhere:six"}, "train.variant = 'nowhere:six': there is no nowhere.py in"),
        ({"variant": "nowhere.py"}, "train.variant = 'nowhere.py': must be 'package.module:name'"),
    ],
)
def test_what_real_parties_cannot_honour_is_refused_before_anything_starts(keys, text, folder):
    with pytest.raises(ConfigError, match=text):
        Job(with_keys(RIDGE, train={"folder": folder, **keys}))


def test_hubs_send_every_dtype_that_a_variant_may_use():
    for dtype in WIRE_DTYPES:
        message = Part(sender="a", receiver="b", flow="phi", arrays=named({"phi": np.arange(5).astype(dtype)}))
        assert arrays_of(decode(encode(message), sender="a", receiver="b").arrays)["phi"].dtype == dtype
