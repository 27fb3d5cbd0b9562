"""Masked sums between hubs: the run of plain fixed point to the last bit, and a transcript that tells the sum only."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from test_align import talk_all

from support.in_process import SECRET, InProcess
from support.parts import between_hubs
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError, check_config
from tdcd.core.codecs.fixed_point import BeyondRangeError, FixedPoint
from tdcd.prediction.scores import SiloScores, combine
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.compute.secure_sums import Masks, Sums
from tdcd.runtime.job import Job
from tdcd.runtime.machine.masks import MaskAgreement
from tdcd.runtime.messages.messages import PredictScores
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.predict import MaskedPredictHub, ModelOf

SILOS = [*RIDGE["silos"], {"name": "shop", "clients": 3}]
MASK = {"silos": SILOS, "exchange": {"protect": "mask"}}
LATE = {"silos": [*SILOS[:2], {**SILOS[2], "period": 3}], "train": {"overlap": 2, "rounds": 9}}
HUBS = ("hub.a", "hub.b", "hub.c")
FIXED = FixedPoint(256.0, 3)


@pytest.fixture(scope="module")
def in_step():
    """A masked run of real parties, with what they sent, and its simulation."""
    config = with_keys(RIDGE, **MASK)
    planned, result = simulated(config)
    return config, shards(planned), InProcess(config, shards(planned), seed=1).run(), result


def plain(tmp_path, monkeypatch, **sections):
    """The same configuration with fixed point and no masks."""
    timing = sections.get("train", {}).get("overlap", 0)
    (tmp_path / "plain_fixed.py").write_text(
        "from tdcd import Overlap, Variant\nfrom tdcd.core.codecs.fixed_point import FixedPoint\n"
        f"plain = Variant(exchange=FixedPoint(256.0, 3), timing=Overlap({timing}, {(1, 1, 3) if timing else ()}))\n"
    )
    monkeypatch.delitem(sys.modules, "plain_fixed", raising=False)
    train = {key: value for key, value in sections.get("train", {}).items() if key != "overlap"}
    train |= {"variant": "plain_fixed:plain", "folder": str(tmp_path)}
    return with_keys(RIDGE, silos=SILOS, **{**{k: v for k, v in sections.items() if k != "silos"}, "train": train})


def histories(office):
    return {tuple(record.to_json() for record in history) for history in office.history.values()}


def test_the_masked_run_is_the_plain_one_bit_for_bit_and_the_simulation(in_step, tmp_path, monkeypatch):
    _, data, masked, result = in_step
    unmasked = InProcess(plain(tmp_path, monkeypatch), data, seed=2).run()
    assert histories(masked) == histories(unmasked)
    assert len(histories(masked)) == 1
    for hub, block in masked.blocks().items():
        assert all((block[name] == leaf).all() for name, leaf in unmasked.blocks()[hub].items())
    assert_same_history(masked, result)


def test_so_it_is_where_rounds_overlap_and_a_silo_is_slow(tmp_path, monkeypatch):
    config = with_keys(RIDGE, **{**MASK, **LATE})
    planned, result = simulated(config)
    masked = InProcess(config, shards(planned), seed=1).run()
    unmasked = InProcess(plain(tmp_path, monkeypatch, **LATE), shards(planned), seed=2).run()
    assert histories(masked) == histories(unmasked)
    assert_same_history(masked, result)


def test_it_is_the_float_run_to_the_resolution(in_step):
    _, _, masked, _ = in_step
    _, exact = simulated(with_keys(RIDGE, silos=SILOS))
    for ours, theirs in zip(masked.history["hub.lab"], exact.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, abs=10 * 2.0**-FIXED.bits)
        # Four bytes per number in double precision, too.
        assert 2 * ours.bytes.hub_to_hub == theirs.bytes.hub_to_hub


def test_what_is_sent_says_nothing_without_the_masks(in_step):
    """Small numbers in fixed point share their high bits; masked, all bits are even and no two parts are alike."""
    _, _, masked, _ = in_step
    phis = [m.arrays["phi"].values for m in masked.sent if between_hubs(m, "phi")]
    scores = [m.arrays["train"].values for m in masked.sent if between_hubs(m, "scores")]
    for parts in (phis, scores):
        numbers = np.unique(np.concatenate([part.ravel() for part in parts]))
        assert parts[0].dtype == np.uint32
        bits = np.unpackbits(numbers.view(np.uint8)).reshape(-1, 32)
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


# Masks


def masks_of(run="run", group=HUBS, secrets=None):
    """The masks of every member, whose secrets are those of each pair."""
    shared = secrets or {frozenset((a, b)): f"{min(a, b)} {max(a, b)}".encode() for a in HUBS for b in HUBS if a != b}
    return {own: Masks(own, {m: shared[frozenset((own, m))] for m in group if m != own}, group, run) for own in group}


def test_masks_cancel_and_are_never_used_twice():
    seen = set()
    for run, group in (("run", HUBS), ("other run", HUBS), ("run", HUBS[:2])):
        masks = masks_of(run, group)
        for what in ("phi", "train", "test", "prediction", "block", "products"):
            for round_index, after in ((0, ""), (0, "products"), (0, "others"), (1, ""), (2**40, "")):
                drawn = [one.of(what, round_index, (3, 2), after) for one in masks.values()]
                assert not sum(drawn).any()
                seen |= {one.tobytes() for one in drawn}
    # Of two members, the masks are one another's negatives, and so two as well.
    assert len(seen) == 6 * 5 * (3 + 3 + 2)


def test_with_labels_at_one_silo_its_hub_only_adds_up():
    """The others' masks cancel without it."""
    job = Job(with_keys(RIDGE, **MASK, federation={"labels": "lab"}))
    agreements = [MaskAgreement(job, silo, Keys.of_secret(hub, SECRET), hub) for silo, hub in enumerate(job.hubs)]
    # The run is named after all keys, its own too.
    cards = [one.card(["rows"]) for one in agreements]
    hellos = {hub: SimpleNamespace(nonce=hub, card=card) for hub, card in zip(job.hubs, cards, strict=True)}
    clinic, lab, shop = (one.masks(hellos, "run") for one in agreements)
    assert lab is None
    assert not (clinic.of("phi", 3, (4,)) + shop.of("phi", 3, (4,))).any()
    phi = {hub: np.random.default_rng(index).normal(size=(4, 1)) for index, hub in enumerate(job.hubs)}
    sent = [
        Sums(FIXED, "float64", "hub", masks).part("phi", 3, phi[hub])
        for hub, masks in (("hub.clinic", clinic), ("hub.shop", shop))
    ]
    others = Sums(FIXED, "float64", "hub.lab", lab).others("phi", 3, sent)
    assert np.abs(others - phi["hub.clinic"] - phi["hub.shop"]).max() <= 2.0**-FIXED.bits


class Shifted:
    """Masks that are off by a number that another member's are off by as well, the other way."""

    def __init__(self, masks, by):
        self.masks, self.by = masks, by

    def of(self, what, round_index, shape, after=""):
        return self.masks.of(what, round_index, shape, after) + self.by


@pytest.mark.parametrize("seed", range(20))
def test_a_hub_cannot_tell_the_others_phi_apart(seed):
    """For phi_2 + x and phi_3 - x there are masks with which hub 1 gets the same bytes: it learns the sum alone."""
    rng = np.random.default_rng(seed)
    phi = {hub: rng.uniform(-20, 20, (5, 2)) for hub in HUBS}
    x = np.round(rng.uniform(-40, 40, (5, 2)) * 2.0**FIXED.bits) / 2.0**FIXED.bits
    masks, shift = masks_of(), FIXED.steps(x)
    sums = {hub: Sums(FIXED, "float64", hub, masks[hub]) for hub in HUBS}
    sent = {hub: sums[hub].part("phi", 7, phi[hub]) for hub in HUBS}
    second = Sums(FIXED, "float64", "hub.b", Shifted(masks["hub.b"], -shift)).part("phi", 7, phi["hub.b"] + x)
    third = Sums(FIXED, "float64", "hub.c", Shifted(masks["hub.c"], shift)).part("phi", 7, phi["hub.c"] - x)
    assert second.tobytes() == sent["hub.b"].tobytes()
    assert third.tobytes() == sent["hub.c"].tobytes()
    others = sums["hub.a"].others("phi", 7, [second, third])
    assert np.abs(others - phi["hub.b"] - phi["hub.c"]).max() <= 2.0**-FIXED.bits
    assert np.abs(sums["hub.a"].own("phi", 7, sent["hub.a"]) - phi["hub.a"]).max() <= 2.0 ** (-FIXED.bits - 1)


# What stops a run


def test_numbers_beyond_the_range_stop_everybody(in_step):
    config = with_keys(RIDGE, **{**MASK, "exchange": {"protect": "mask", "mask_range": 0.5}})
    with pytest.raises(BeyondRangeError, match=r"silo '\w+': phi reached .* exchange.mask_range = 0.5 .* raise"):
        simulated(config)
    office = InProcess(config, in_step[1]).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    reasons = {end.reason for end in office.ends.values()}
    assert all("reached" in one and "exchange.mask_range = 0.5" in one and "hub." in one for one in reasons), reasons


def test_a_forged_key_is_refused(in_step):
    config, data, *_ = in_step
    office = InProcess(config, data)
    office.machines["hub.lab"].handshake._agreement._keys = Keys.of_secret("hub.lab", b"somebody else's")
    office.run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    reason = "the key for masks of hub.lab is not signed with the federation's secret"
    assert any(reason in end.reason for end in office.ends.values())


def test_a_hub_with_other_rows_has_another_key(in_step):
    """Where a run is begun again with the same nonce and other rows, the same masks would show the difference."""
    agreement = MaskAgreement(Job(in_step[0]), 1, Keys.of_secret("hub.lab", SECRET), "nonce 1")
    assert len({agreement.card(rows).public for rows in (["a", "b"], ["a", "c"], ["a", "b"])}) == 2


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"exchange": {"protect": "mask"}}, "with 2 silos the sum of the other silos' phi is that of one, so masks"),
        (
            {"exchange": {"protect": "mask"}, "federation": {"labels": "lab"}},
            "besides federation.labels = 'lab' there is one silo, .* takes two silos without labels",
        ),
        ({**MASK, "exchange": {"protect": "mask", "phi_bits": 8}}, "exchange.phi_bits = 8: does not go with"),
        ({**MASK, "federation": {"client_grace_s": 1.0}}, "federation.client_grace_s = 1.0: does not go with"),
        ({**MASK, "train": {"participation": 0.5}}, "train.participation = 0.5: does not go with exchange.protect"),
        ({"exchange": {"mask_range": 8.0}}, "exchange.mask_range = 8: goes with exchange.protect = 'mask'"),
        ({**MASK, "exchange": {"protect": "mask", "mask_range": 0.0}}, "exchange.mask_range = 0.0: must be greater"),
        ({**MASK, "train": {"algorithm": "sgd"}}, "exchange.protect = 'mask': goes with train.algorithm = 'tdcd'"),
    ],
)
def test_what_cannot_work_gets_a_sentence(sections, text):
    with pytest.raises(ConfigError, match=text):
        with_keys(RIDGE, **sections)


# Prediction

IDS = {"bank": ["1", "2", "3", "5"], "shop": ["3", "2", "9", "5"], "bureau": ["2", "1", "7", "3", "5"]}


def predicting(to=()):
    rng = np.random.default_rng(0)
    job = Job(check_config({"silos": [{"name": name} for name in IDS], "exchange": {"protect": "mask"}}))
    return {
        silo: MaskedPredictHub(
            job,
            index,
            SiloScores(ids, rng.normal(size=(len(ids), 2)).astype(np.float32)),
            ModelOf("abc", "finished"),
            Keys.of_secret(f"hub.{silo}", SECRET),
            to=to,
        )
        for index, (silo, ids) in enumerate(IDS.items())
    }


@pytest.mark.parametrize("to", [(), ("hub.shop",), ("hub.bank", "hub.bureau")])
def test_predictions_of_what_all_hubs_have(to):
    hubs = predicting(to)
    assert {outcome.status for outcome in talk_all(hubs.values()).values()} == {"finished"}
    for silo, hub in hubs.items():
        if hub.name not in (to or [hub.name]):
            assert hub.scores() == {}
            continue
        parts = {silo: hub.own, **{peer.removeprefix("hub."): part for peer, part in hub.scores().items()}}
        found = combine(parts, common_only=True)
        assert list(found.ids) == [one for one in IDS[silo] if one in ("2", "3", "5")]
        exact = sum(one.own.phi[[list(one.own.ids).index(i) for i in found.ids]].astype(float) for one in hubs.values())
        assert np.abs(found.scores - exact).max() < 4 * 2.0**-FIXED.bits
        with pytest.raises(ValueError, match=r"silo 'shop' lacks 1 of 4 ids: '1'|silo '\w+' lacks"):
            combine(parts)


def compare(hub, peer, hello=None):
    """Both hubs' ids are compared; what ``hub`` then sends. ``hello`` is what the peer says first."""
    peer._compared.pop(hub.name, None)
    (returned,) = peer.receive(hub._hello().to(peer.name))
    hub.receive((hello or peer._hello()).to(hub.name))
    # Who lies about its samples names the comparison accordingly.
    return hub.receive(returned.replace(run=hub._compared[peer.name].name))


def test_other_samples_are_predicted_with_other_masks():
    """A peer that says that it has other samples could otherwise take one answer from another."""
    bank, shop, bureau = predicting().values()
    fewer = bank._hello().replace(points=Array.of(bank._hello().points.values[1:]))
    compare(shop, bureau)
    sessions = [compare(shop, bank, hello)[0].run for hello in (bank._hello(), fewer)]
    assert sessions[0] != sessions[1]


def test_other_returned_points_get_other_masks():
    """The same with what a peer returns: the samples that both have would be others, and the masks the same."""
    bank, shop, bureau = predicting().values()
    compare(shop, bureau)
    first = compare(shop, bank)
    (returned,) = bank.receive(shop._hello().to("hub.bank"))
    turned = returned.replace(points=Array.of(returned.points.values[::-1].copy()))
    with pytest.raises(RejectedMessage, match="it was returned before"):
        shop.receive(turned)
    shop.receive(bank._hello().to("hub.shop"))
    assert shop.receive(turned)[0].run != first[0].run


def test_a_hub_that_comes_back_predicts_with_new_masks():
    bank, shop, bureau = predicting().values()
    compare(shop, bank)
    first = compare(shop, bureau)
    again = predicting()["bank"]
    second = compare(shop, again)
    for early, late in zip(first, second, strict=True):
        assert isinstance(early, PredictScores)
        assert early.run != late.run
        assert (early.phi.values != late.phi.values).all()
    # What came with the masks before is not used.
    compare(bureau, bank)
    old = compare(bureau, shop)
    shop.receive(next(message for message in old if message.receiver == "hub.shop"))
    assert shop.parts == {}
