"""Phi once per row, where rows belong to many samples: the run of the joined table, in fewer bytes."""

import numpy as np
import pytest

from support.in_process import InProcess, largest_difference
from support.parts import EVALUATION, from_client, link_of, to_client
from support.party_files import data_of
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.sample_index import Enrolment
from tdcd.runtime.messages.messages import Enrol, Part, Ready
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.trial import write_rows

SAMPLES, HOURS, FAN_OUT = 120, 5, 24
LINKS = "client_to_hub", "hub_to_client", "hub_to_hub"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Trips, the weather of some hours, which trip was when, and the weather of every trip."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(1)
    hours = rng.permutation(np.repeat(np.arange(HOURS), FAN_OUT))
    weather = rng.normal(10, 5, (HOURS, 2)).round(3)
    length = rng.normal(5, 2, SAMPLES).round(3)
    late = np.where(length + 0.3 * weather[hours, 0] + rng.normal(0, 1, SAMPLES) > 8, "yes", "no")
    lines = {
        "trips": ["id,length,late", *(f"{i},{length[i]},{late[i]}" for i in range(SAMPLES))],
        "hours": ["hour,rain,wind", *(f"h{hour},{rain},{wind}" for hour, (rain, wind) in enumerate(weather))],
        "when": ["id,hour", *(f"{i},h{hours[i]}" for i in range(SAMPLES))],
        "joined": ["id,rain,wind", *(f"{i},{weather[hours[i], 0]},{weather[hours[i], 1]}" for i in range(SAMPLES))],
    }
    for name, own in lines.items():
        (folder / f"{name}.csv").write_text("\n".join(own) + "\n")
    return folder


def keys_of(folder, weather, **sections):
    keys = {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(folder)},
        "silos": [
            {"name": "taxi", "table": "trips.csv", "clients": 2, "label": "late"},
            {"name": "weather", "clients": 2, **weather},
        ],
        "model": {"block": "linear", "l2": 0.01},
        "train": {"rounds": 3, "local_steps": 2, "batch_size": 30, "step_size": 0.2},
        "evaluate": {"holdout": 0.2},
    }
    return {**keys, **{name: {**keys.get(name, {}), **own} for name, own in sections.items()}}


def office_of(config, folder):
    return InProcess(config, data_of(config, write_rows(plan(config), folder)))


JOINED = {"table": "joined.csv"}
KEYED = {"table": "hours.csv", "key": "hour", "link": "when.csv"}
AT_TAXI = {"federation": {"labels": "taxi"}}
ONE_STEP = {"local_steps": 1, "minibatches": "full"}
CASES = {
    "minibatches": {},
    "every sample, labels at one silo": {**AT_TAXI, "train": {"minibatches": "full"}},
    "scaled steps, labels at one silo": {**AT_TAXI, "train": {"step_size": "auto", **ONE_STEP}},
    "drawn clients, weights": {**AT_TAXI, "train": {**ONE_STEP, "participation": 0.5, "class_weights": "balanced"}},
    "scaled steps, a certificate": {"train": {"step_size": "auto", "minibatches": "full"}},
    "a network, overlap": {"model": {"block": "mlp", "hidden": [3]}, "train": {"overlap": 1}},
    "few bits": {"exchange": {"phi_bits": 8}},
}


def bytes_of(office, flow, party="client.weather"):
    """What a silo's clients have sent and received of a flow."""
    sent = [message for message in office.sent if from_client(message, flow) or to_client(message, flow)]
    return sum(message.payload_bytes for message in sent if party in message.sender + message.receiver)


@pytest.mark.parametrize("name", CASES)
def test_the_run_of_the_joined_table_in_fewer_bytes(tables, tmp_path, name):
    joined, keyed = (
        office_of(check_config(keys_of(tables, weather, **CASES[name])), tmp_path / table).run()
        for table, weather in (("joined", JOINED), ("keyed", KEYED))
    )
    for office in (joined, keyed):
        assert {end.status for end in office.ends.values()} <= {"finished", "converged"}, office.ends
        (last, *_) = (history[-1] for history in office.history.values())
        parts = [message for message in office.sent if isinstance(message, Part | Ready)]
        # Of drawn clients the ledger has the share that it expects.
        for link in LINKS if "drawn" not in name else ():
            counts = {True: 0, False: 0}
            for message in parts:
                if link_of(message) == link:
                    counts[getattr(message, "flow", "products") in EVALUATION] += message.payload_bytes
            assert (getattr(last.bytes, link), getattr(last.evaluation_bytes, link)) == (counts[False], counts[True])
    for ours, theirs in zip(keyed.history["hub.taxi"], joined.history["hub.taxi"], strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-12)
        assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-12)
    for hub, block in joined.blocks().items():
        assert largest_difference(block, keyed.blocks()[hub]) < 1e-12
    # Both clients have trips in every hour, in training and among those held out.
    assert bytes_of(joined, "scores") == SAMPLES / (4 * HOURS) * bytes_of(keyed, "scores")
    fewer = (96 if "full" in str(CASES[name]) else 60) / (2 * HOURS)
    assert bytes_of(joined, "phi") == (1 if name == "few bits" else fewer) * bytes_of(keyed, "phi")
    # The slopes of the samples of a row are summed where a round is one step, and labels are elsewhere. Marks of absent
    # samples, and how many are left, are not.
    sums = fewer if "local_steps" in str(CASES[name]) else 1
    assert "drawn" in name or bytes_of(joined, "received") == sums * bytes_of(keyed, "received")
    for flow in ("phi", "scores", "block", "received"):
        assert bytes_of(joined, flow, "client.taxi") == bytes_of(keyed, flow, "client.taxi")


def test_numbers_of_rows_are_checked():
    ids = ["a", "b", "c"]
    numbers = Array.of(np.array([0, 2, 0]))
    enrol = Enrol(
        "client.weather.c1",
        "hub.weather",
        protocol=0,
        session="",
        config={},
        ids=ids,
        is_table=True,
        shared=numbers,
        rows="0" * 32,
    )
    assert Enrolment.read(enrol, has_labels=False, is_keyed=True).shared.tolist() == [0, 2, 0]
    with pytest.raises(RejectedMessage, match="'shared' goes with tables whose rows have a key"):
        Enrolment.read(enrol, has_labels=False)
    for wrong in ([0, 3, 0], [-1, 0, 0]):
        with pytest.raises(RejectedMessage, match="'shared' must be numbers of rows"):
            Enrolment.read(enrol.replace(shared=Array.of(np.array(wrong))), has_labels=False, is_keyed=True)
    with pytest.raises(RejectedMessage):
        Enrolment.read(enrol.replace(shared=Array.of(np.array([0, 1]))), has_labels=False, is_keyed=True)
