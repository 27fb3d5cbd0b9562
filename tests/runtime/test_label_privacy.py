"""Randomised labels between real parties: drawn once with a secret, and no true label in a message."""

import csv
import json
import stat

import numpy as np
import pytest
from test_tables import data_of, write_table
from typer.testing import CliRunner

from support.in_process import InProcess
from tdcd.cli.app import app
from tdcd.config import check_config, read_config
from tdcd.config.resolve import plan
from tdcd.data.randomized import trial_key
from tdcd.records.run_folder import toml_text
from tdcd.runtime.messages.wire import encode
from tdcd.runtime.process.party import PartySection, read_data
from tdcd.runtime.process.trial import write_rows
from tdcd.runtime.storage.keys import label_key
from tdcd.tables.errors import TableError
from tdcd.tables.split import split_table
from tdcd.training.run import run


@pytest.fixture
def keys(tmp_path):
    """Per-client files and their configuration, with randomised labels."""
    write_table(tmp_path / "all.csv")
    silos = {"bank": ["age", "income"], "shop": ["debt", "town"]}
    path = split_table(tmp_path / "all.csv", tmp_path / "split", silos=silos, clients=[3, 2], label="bought", seed=1)
    return read_config(path) | {
        "dtype": "float64",
        "federation": {"label_epsilon": 1.0, "label_classes": ["no", "yes"]},
        "train": {"rounds": 5, "local_steps": 3, "batch_size": 20, "step_size": 0.2},
        "evaluate": {"every": 2},
    }


def truth(tmp_path):
    with (tmp_path / "all.csv").open(newline="") as file:
        return {row["id"]: row["bought"] for row in csv.DictReader(file)}


def same_as_the_simulation(config, data, folder):
    office, result = InProcess(config, data).run(), run(config, folder)
    assert {end.status for end in office.ends.values()} == {"finished"}, office.ends
    for history in office.history.values():
        for record, simulated in zip(history, result.history, strict=True):
            assert record.train_loss == pytest.approx(simulated.train_loss, rel=1e-10)
            assert record.test_loss == pytest.approx(simulated.test_loss, rel=1e-10)
            for split, figures in simulated.metrics.items():
                assert record.metrics[split] == pytest.approx(figures, rel=1e-10)
    return office, result


def shared_file(keys, tmp_path):
    """What ``tdcd labels`` makes of all labels, with the key that the simulation has."""
    path, key, out = tmp_path / "federation.toml", tmp_path / "seed.key", tmp_path / "labels.csv"
    path.write_text(toml_text(keys))
    key.write_text(trial_key(keys["data"].get("seed", 0)).hex())
    command = ["labels", str(path), "--silo", "bank", "--data", str(tmp_path / "all.csv"), "--key", str(key)]
    answer = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    assert "randomised with epsilon = 1: 73 % stay as they are" in answer.output
    return out


def test_shared_labels_are_randomised_once_and_every_party_has_the_same(keys, tmp_path):
    config, labels = check_config(keys), shared_file(keys, tmp_path)
    data, true = {}, truth(tmp_path)
    for index, silo in enumerate(config.silos):
        for client in silo.client:
            own = PartySection(data=str(tmp_path / "split" / client.table), labels=str(labels))
            data[f"client.{silo.name}.{client.name}"] = read_data(config, index, own)
    office, result = same_as_the_simulation(config, data, tmp_path / "run")
    # A hub has no other labels than the randomised ones.
    for hub in office.hubs.values():
        samples, known = hub.handshake.sample_index, hub.handshake.sample_index.known
        named = [known.classes[int(number)] for number in known.labels]
        stayed = np.mean([true[one] == label for one, label in zip(samples.ids, named, strict=True)])
        assert 0.6 < stayed < 0.9
        assert known.in_words.endswith("; randomised with epsilon = 1: 73 % stay as they are")
    with (tmp_path / "run" / "held-out.csv").open(newline="") as file:
        assert "randomised_label" in next(csv.reader(file))
    facts = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert facts["labels"] == known.in_words
    assert "label_epsilon = 1.0" in (tmp_path / "run" / "config.toml").read_text()
    assert result.history[0].train_loss == pytest.approx(np.log(2))


def test_a_trial_has_the_labels_of_the_simulation(keys, tmp_path):
    config = check_config(keys)
    same_as_the_simulation(config, data_of(config, write_rows(plan(config), tmp_path / "data")), tmp_path / "run")


SOURCE = {
    "dtype": "float64",
    "data": {"source": "breast_cancer", "rows": 100},
    "federation": {"label_epsilon": 1.0},
    "model": {"block": "linear"},
    "train": {"step_size": 0.05, "rounds": 2, "local_steps": 2, "batch_size": 20},
    "silos": [{"name": "a", "clients": 2}, {"name": "b"}],
}


def test_a_trial_of_a_source_too(tmp_path):
    config = check_config(SOURCE)
    same_as_the_simulation(config, data_of(config, write_rows(plan(config), tmp_path / "data")), tmp_path / "run")


@pytest.mark.parametrize(
    ("written", "read", "words"),
    [
        ({}, {"label_epsilon": 1.0}, "are not randomised, and federation.label_epsilon = 1: "),
        (
            {"labels": "a"},
            {"labels": "a", "label_epsilon": 1.0},
            "are not randomised, and federation.label_epsilon = 1",
        ),
        (
            {"label_epsilon": 1.0},
            {},
            "were randomised with epsilon = 1, and the file has no federation.label_epsilon: ",
        ),
        (
            {"label_epsilon": 1.0},
            {"label_epsilon": 2.0},
            "were randomised with epsilon = 1, and federation.label_epsilon = 2: ",
        ),
    ],
)
def test_ready_labels_must_be_randomised_as_the_file_says(written, read, words, tmp_path):
    write_rows(plan(check_config(SOURCE | {"federation": written})), tmp_path)
    own = PartySection(data=str(tmp_path / "client.a.c1.safetensors"))
    assert read_data(check_config(SOURCE | {"federation": written}), 0, own).labels is not None
    with pytest.raises(ValueError, match=rf"the labels of .*client\.a\.c1\.safetensors {words}"):
        read_data(check_config(SOURCE | {"federation": read}), 0, own)


def test_ready_rows_without_labels_have_no_epsilon(tmp_path):
    config = check_config(SOURCE | {"federation": {"labels": "a", "label_epsilon": 1.0}})
    write_rows(plan(config), tmp_path)
    assert read_data(config, 1, PartySection(data=str(tmp_path / "client.b.c1.safetensors"))).labels is None


@pytest.fixture
def at_the_bank(keys, tmp_path):
    """The same where only the bank has labels."""
    silos = {"bank": ["age", "income"], "shop": ["debt", "town"]}
    how = {"clients": [3, 2], "label": "bought", "labels_at": "bank", "seed": 1}
    at = read_config(split_table(tmp_path / "all.csv", tmp_path / "at", silos=silos, **how))
    return check_config(
        keys | {"data": at["data"], "silos": at["silos"], "federation": at["federation"] | keys["federation"]}
    )


def own_data(config, folder, key):
    """What every client reads of its own table; the bank's clients draw with the key in a file."""
    data = {}
    for index, silo in enumerate(config.silos):
        for client in silo.client:
            own = PartySection(data=str(folder / client.table), label_key=str(key))
            data[f"client.{silo.name}.{client.name}"] = read_data(config, index, own)
    return data


def test_the_label_silo_randomises_its_own_labels_and_the_history_is_the_same(at_the_bank, tmp_path):
    (tmp_path / "seed.key").write_text(trial_key(0).hex())
    data = own_data(at_the_bank, tmp_path / "at", tmp_path / "seed.key")
    same_as_the_simulation(at_the_bank, data, tmp_path / "run")
    trial = data_of(at_the_bank, write_rows(plan(at_the_bank), tmp_path / "data"))
    for client, own in trial.items():
        assert (own.labels is None) == (data[client].labels is None) == ("shop" in client)
        assert own.labels == data[client].labels


def test_the_draw_is_a_secret_of_the_client_and_the_same_after_a_restart(at_the_bank, tmp_path):
    true = truth(tmp_path)
    table = str(tmp_path / "at" / at_the_bank.silos[0].client[0].table)
    first, again, other = (
        read_data(at_the_bank, 0, PartySection(data=table, certs=str(tmp_path / certs)))
        for certs in ("one", "one", "two")
    )
    key = tmp_path / "one" / "labels.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [*key.parent.iterdir()] == [key]
    assert first.labels == again.labels != other.labels
    assert first.digest == again.digest
    # The shared file's seed does not give the draw away.
    (tmp_path / "seed.key").write_text(trial_key(0).hex())
    seeded = own_data(at_the_bank, tmp_path / "at", tmp_path / "seed.key")["client.bank.c1"]
    assert first.labels not in (seeded.labels, [true[one] for one in first.ids])


def test_no_message_depends_on_a_true_label(at_the_bank, tmp_path):
    """Two label vectors that are randomised to the same one: every byte that any party sends is the same."""
    path, key = tmp_path / "at" / at_the_bank.silos[0].client[0].table, tmp_path / "labels.key"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))

    def data_with(labels):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(row | {"bought": label} for row, label in zip(rows, labels, strict=True))
        return own_data(at_the_bank, tmp_path / "at", key)

    drawn = {label: data_with([label] * len(rows))["client.bank.c1"].labels for label in ("no", "yes")}
    before = [row["bought"] for row in rows]
    after = [
        {"no": "yes", "yes": "no"}[label] if drawn["no"][place] == drawn["yes"][place] else label
        for place, label in enumerate(before)
    ]
    assert before != after
    sent = [
        [encode(message) for message in InProcess(at_the_bank, data_with(labels)).run().sent]
        for labels in (before, after)
    ]
    assert len(sent[0]) > 100
    assert sent[0] == sent[1]


def test_senseless_labels_are_refused(keys, at_the_bank, tmp_path):
    config, labels = check_config(keys), shared_file(keys, tmp_path)
    table = str(tmp_path / "split" / config.silos[0].client[0].table)
    with pytest.raises(TableError, match=r"not randomised, and silo 'bank' is not the only one .* with tdcd labels"):
        read_data(config, 0, PartySection(data=table))
    with_file = PartySection(data=table, labels=str(labels))
    for epsilon, words in (
        (2.0, "randomised with epsilon = 1, and federation.label_epsilon = 2"),
        (None, "has no fed"),
    ):
        other = {} if epsilon is None else keys["federation"] | {"label_epsilon": epsilon}
        with pytest.raises(TableError, match=words):
            read_data(check_config(keys | {"federation": other}), 0, with_file)
    classes = at_the_bank.federation.model_copy(update={"label_classes": ["no", "never"]})
    few = at_the_bank.model_copy(update={"federation": classes})
    with pytest.raises(TableError, match=r"'yes' is none of federation.label_classes \(never, no\): add it"):
        read_data(few, 0, PartySection(data=table, certs=str(tmp_path / "certs")))


def test_labels_that_were_randomised_already_are_not_randomised_again(at_the_bank, tmp_path):
    path = tmp_path / "at" / at_the_bank.silos[0].client[0].table
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},label_epsilon", *(f"{line},1.0" for line in lines)]))
    with pytest.raises(TableError, match=r"column 'label_epsilon' .* randomised already: give .* with --labels"):
        read_data(at_the_bank, 0, PartySection(data=str(path), certs=str(tmp_path / "certs")))


def test_check_says_what_happens_to_the_labels(keys, at_the_bank, tmp_path):
    table = str(tmp_path / "split" / "bank" / "c1.csv")
    for federation, code, words in (
        (at_the_bank.federation.model_dump(), 0, "randomised with epsilon = 1: 73 % stay as they are"),
        (keys["federation"], 2, "are not randomised, and silo 'bank' is not the only one"),
    ):
        silos = keys["silos"] if code else [silo.model_dump() for silo in at_the_bank.silos]
        path = tmp_path / "checked.toml"
        path.write_text(toml_text(keys | {"federation": federation, "silos": silos}))
        command = ["check", str(path), "--silo", "bank", "--client", "c1", "--data", table]
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == code, answer.output
        assert words in answer.output
    assert not [*tmp_path.rglob("labels.key")]


def test_a_key_that_is_damaged_is_not_replaced(tmp_path):
    path = tmp_path / "labels.key"
    path.write_text("")
    with pytest.raises(ValueError, match="is not a key of 64 hexadecimal digits: restore it"):
        label_key(path)
