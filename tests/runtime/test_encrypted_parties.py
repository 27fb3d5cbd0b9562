"""Encrypted slopes between real parties: the simulation's history, who sees what, the ledger, and what stops a run."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from support.in_process import InProcess
from support.parts import between_hubs
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.core.codecs.fixed_point import BeyondRangeError
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import Opening, Part

TWO = [{"name": "shop", "clients": 2}, {"name": "bank", "clients": 2}]
THREE = [*TWO, {"name": "bureau", "clients": 1}]
ENCRYPT = {
    "silos": TWO,
    "federation": {"labels": "bank", "protect_labels": "encrypt"},
    "train": {"local_steps": 1},
}
BREAST, DIGITS = {"source": "breast_cancer"}, {"source": "digits", "rows": 300}
CASES = {
    "squared": {},
    "logistic, three silos, shared": {
        "data": BREAST,
        "silos": THREE,
        "federation": {"labels": "bank", "protect_labels": "encrypt", "share_model": True},
    },
    "softmax": {"data": DIGITS, "train": {"local_steps": 1, "rounds": 2}},
    "huber, momentum at the hubs": {
        "model": {"loss": "huber"},
        "train": {"local_steps": 1, "hub_optimizer": "momentum"},
    },
    "logistic, noisy labels": {
        "data": BREAST,
        "federation": {"labels": "shop", "protect_labels": "encrypt", "label_epsilon": 2.0},
    },
}


def config_of(name, **sections):
    return with_keys(RIDGE, **{**ENCRYPT, **CASES[name], **sections})


def run(config, seed=1):
    pytest.importorskip("tenseal")
    planned, result = simulated(config)
    return planned, result, InProcess(config, shards(planned), seed=seed).run()


@pytest.mark.parametrize("name", CASES)
def test_same_history_and_blocks_as_the_simulation(name):
    _, result, office = run(config_of(name))
    assert_same_history(office, result)
    counted = next(iter(office.history.values()))[-1]
    # With the key, which is sent once: between hubs with the opening, to clients with their first slopes.
    sent = [m for m in office.sent if isinstance(m, Part) and between_hubs(m, "phi", "slope", "masked", "sums")]
    openings = {(m.sender, m.receiver): m for m in office.sent if isinstance(m, Opening)}
    assert counted.bytes.hub_to_hub == sum(m.payload_bytes for m in [*sent, *openings.values()])
    assert counted.messages.hub_to_hub == len(sent)
    up = [
        m
        for m in office.sent
        if isinstance(m, Part) and m.sender.startswith("client") and m.flow in ("phi", "block", "share")
    ]
    assert counted.bytes.client_to_hub == sum(m.payload_bytes for m in up)
    down = [m for m in office.sent if isinstance(m, Part) and m.receiver.startswith("client")]
    down = [m for m in down if m.flow in ("block", "received", "sealed")]
    assert counted.bytes.hub_to_client == sum(m.payload_bytes for m in down)
    assert counted.messages.hub_to_client == len(down)


def test_automatic_steps_are_those_of_the_simulation():
    """Scaled and steered steps at the hubs, a limit of rounds, and no certificate, which takes slopes."""
    train = {"step_size": "auto", "rounds": 8, "local_steps": "auto", "batch_size": "auto"}
    _, result, office = run(with_keys(RIDGE, **{**ENCRYPT, "data": BREAST, "train": train}))
    assert_same_history(office, result)
    assert all(record.gap is None for record in result.history)
    assert not any(isinstance(m, Part) and m.flow in ("residual", "gradient") for m in office.sent)


def test_no_party_but_the_label_silo_can_read_a_label():
    """What reaches the other silo of slopes is ciphertexts; as labels they are a coin. Where they are sent as they
    are, the same attack finds every label.
    """
    found = {}
    for protect in ("none", "encrypt"):
        federation = {"labels": "bank", "protect_labels": protect}
        config = config_of("squared", data=BREAST, federation=federation, train={"local_steps": 1, "rounds": 12})
        planned, _, office = run(config)
        parts = [m for m in office.sent if isinstance(m, Part) and m.flow == "slope" and m.receiver == "hub.shop"]
        draws = office.machines["hub.bank"].rounds.compute._draws
        labels = np.concatenate([planned.federation.labels[draws(part.round).ravel()] for part in parts])
        if protect == "none":
            seen = [part.arrays["slope"].values.ravel() for part in parts]
        else:
            seen = [part.arrays["slopes"].values[0, 0, : config.train.batch_size] for part in parts]
            kinds = {str(array.values.dtype) for part in parts for array in part.arrays.values()}
            assert kinds == {"int64", "uint8"}
        found[protect] = roc_auc_score(labels, -np.concatenate(seen).astype(np.float64))
        to_shop = {m.flow for m in office.sent if isinstance(m, Part) and m.receiver in ("hub.shop", "client.shop.c1")}
        assert ("received" in to_shop) == (protect == "none")
    assert found["none"] > 0.99
    # 384 samples: three standard deviations of a coin's AUC are 0.09.
    assert abs(found["encrypt"] - 0.5) < 0.09


def test_the_label_hub_sees_no_gradient_and_no_hub_a_clients():
    _, _, office = run(config_of("squared"))
    masked = [m.arrays["sums"].values for m in office.sent if isinstance(m, Part) and m.flow == "sums"]
    numbers = np.concatenate(masked) / 2.0**47
    # The sums themselves are below 2^40.
    assert np.abs(numbers).max() > 0.9
    assert abs(numbers.mean()) < 5 / np.sqrt(3 * len(numbers))
    shares = [m for m in office.sent if isinstance(m, Part) and m.flow == "share"]
    assert {m.sender for m in shares} == {"client.shop.c1", "client.shop.c2"}
    for share in shares:
        assert np.unique(share.arrays["whole"].values).size > 0.99 * share.arrays["whole"].values.size


def test_a_slope_beyond_the_range_stops_the_run():
    """Here since the scores grow without end."""
    config = config_of("squared", train={"local_steps": 1, "step_size": 5.0})
    sentence = r"a slope of the loss reached \d+.*16 is the most that federation.protect_labels = 'encrypt' can send"
    with pytest.raises(BeyondRangeError, match=r"silo 'bank'.*" + sentence):
        simulated(config)
    pytest.importorskip("tenseal")
    from tdcd.config.resolve import plan

    office = InProcess(config, shards(plan(config))).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert "hub.bank: a slope of the loss reached" in office.ends["hub.bank"].reason


def test_a_feature_beyond_the_range_stops_the_run():
    config = config_of("squared", data={"source": "breast_cancer", "standardize": False})
    sentence = r"a feature reached \d.*128 is the most that federation.protect_labels = 'encrypt' can multiply"
    with pytest.raises(BeyondRangeError, match=r"silo 'shop': " + sentence):
        simulated(config)
    pytest.importorskip("tenseal")
    from tdcd.config.resolve import plan

    office = InProcess(config, shards(plan(config))).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert "client.shop.c" in office.ends["hub.shop"].reason
    assert "leave data.standardize = true" in office.ends["hub.shop"].reason


REFUSED = {
    "train.local_steps = 4: federation.protect_labels = 'encrypt' exchanges one gradient per round": {
        "train": {"local_steps": 4}
    },
    "model.block = 'mlp': federation.protect_labels = 'encrypt' multiplies": {"model": {"block": "mlp"}},
    "goes with federation.labels, the silo that alone has labels": {"federation": {"protect_labels": "encrypt"}},
    "train.batch_size = 9000: ": {"train": {"local_steps": 1, "batch_size": 9000}},
    "train.minibatches = 'full': ": {"train": {"local_steps": 1, "minibatches": "full"}},
    "exchange.protect_blocks = true: does not go with federation.protect_labels": {
        "exchange": {"protect_blocks": True}
    },
    "exchange.block_bits = 8: does not go with federation.protect_labels": {"exchange": {"block_bits": 8}},
    "exchange.protect = 'mask': does not go with federation.protect_labels": {
        "silos": THREE,
        "exchange": {"protect": "mask"},
    },
    "model.head = 'hidden': does not go with federation.protect_labels": {"model": {"head": "hidden"}},
    "train.optimizer = 'adam': does not go with federation.protect_labels": {
        "train": {"local_steps": 1, "optimizer": "adam"}
    },
    "train.participation = 0.5: does not go with federation.protect_labels": {
        "train": {"local_steps": 1, "participation": 0.5}
    },
    "train.class_weights = 'balanced': does not go with federation.protect_labels": {
        "data": BREAST,
        "train": {"local_steps": 1, "class_weights": "balanced"},
    },
    "federation.client_grace_s = 2.0: does not go with federation.protect_labels": {
        "federation": {"labels": "bank", "protect_labels": "encrypt", "client_grace_s": 2.0}
    },
    "train.overlap = 1: does not go with federation.labels": {"train": {"local_steps": 1, "overlap": 1}},
    "train.silo_dropout = 0.2: does not go with federation.protect_labels": {
        "train": {"local_steps": 1, "silo_dropout": 0.2}
    },
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence):
    with pytest.raises(ConfigError) as caught:
        with_keys(RIDGE, **{**ENCRYPT, **REFUSED[sentence]})
    assert sentence in str(caught.value)


def test_a_loss_without_bounded_curvature_says_what_to_set():
    from tdcd.config.resolve import plan

    config = with_keys(
        RIDGE,
        **{
            **ENCRYPT,
            "model": {"loss": "poisson"},
            "train": {"step_size": "auto", "local_steps": "auto", "batch_size": "auto"},
        },
    )
    with pytest.raises(ConfigError, match=r"the curvature of this loss has no bound, so set train.local_steps = 1"):
        plan(config)


def test_without_the_library_a_party_says_what_to_install(monkeypatch):
    import sys

    from tdcd.runtime.compute import encryption

    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(ValueError, match=r"pip install 'tdcd\[encrypt\]'"):
        encryption.require()


@pytest.mark.parametrize("encoding", ["bins", "piecewise"])
def test_wide_encodings_have_the_simulations_history_too(tmp_path, encoding):
    """Several answers per client: one ciphertext has room for 8192 / 128 columns of sums, and here are more."""
    generator, rows = np.random.default_rng(3), 200
    columns = generator.normal(size=(rows, 12))
    labels = (columns[:, 0] + columns[:, 7] > 0).astype(int)
    for name, part in (("bank", columns[:, :6]), ("shop", columns[:, 6:])):
        head = ["id", *(f"{name}{place}" for place in range(6)), *(["y"] if name == "bank" else [])]
        lines = [
            ",".join(map(str, [row, *part[row].round(4), *([labels[row]] if name == "bank" else [])]))
            for row in range(rows)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(head), *lines]) + "\n")
    silos = [
        {"name": "bank", "table": "bank.csv", "clients": 2, "label": "y"},
        {"name": "shop", "table": "shop.csv", "clients": 2},
    ]
    config = with_keys(
        RIDGE,
        data={"source": "files", "folder": str(tmp_path)},
        silos=silos,
        federation=ENCRYPT["federation"],
        model={"encoding": encoding, "bins": 48},
        train={"local_steps": 1, "rounds": 3, "batch_size": 128},
    )
    planned, result, office = run(config)
    shares = [m for m in office.sent if isinstance(m, Part) and m.flow == "share"]
    width = planned.federation.silos[1].features.shape[1]
    assert width > 8192 // 128
    assert {m.arrays["whole"].values.shape[1] for m in shares} == {-(-width // (8192 // 128))}
    assert_same_history(office, result)
    assert result.history[-1].train_loss < result.history[0].train_loss
