"""Audits of breast cancer data, three linear silos: attacks succeed where we say so, and fail where we say so."""

import html
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from support.well_formed import Page
from tdcd.audit import Mode, audit, modes_of
from tdcd.audit.lines import _OUTCOMES, _REMEDIES, LINES, reading, remedy
from tdcd.audit.modes import is_configured
from tdcd.audit.tables import numbers, overview
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.family.labels import LabelsAt
from tdcd.core.losses.figures import auc
from tdcd.pages.audit import page, write_page
from tdcd.training.train import train_plan

KEYS = {
    "name": "<b>breast & co",
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 3, "clients": 3},
    "model": {"block": "linear"},
    "train": {"step_size": 0.05},
}
PLAIN, MASKED, DP = Mode("plain"), Mode("masked", masked=True), Mode("label DP", epsilon=1.0)
AT_ONE, AT_ONE_DP = Mode("plain", LabelsAt(0)), Mode("label DP", LabelsAt(0), epsilon=1.0)
SUMMED = Mode("blocks summed", blocks_summed=True)
CHANCE = math.e / (1 + math.e)


@pytest.fixture(scope="module")
def planned():
    found = plan(check_config(KEYS))
    first, *others = found.federation.silos
    marked = replace(first, columns=tuple(f"<i>{name}" for name in first.columns))
    return found._replace(federation=replace(found.federation, silos=(marked, *others)))


@pytest.fixture(scope="module")
def done(planned):
    return audit(planned, rounds=40, modes=[PLAIN, MASKED, SUMMED, DP, AT_ONE, AT_ONE_DP])


def all_of(done, line, mode):
    return [one for one in done.findings if one.line == line and one.mode == mode]


@pytest.mark.parametrize("line", ["own hub", "few known rows", "known rows"])
def test_a_linear_silo_without_protection_is_read(done, line):
    found = all_of(done, line, PLAIN)
    assert [one.silo for one in found] == ["silo1", "silo2", "silo3"]
    for one in found:
        assert one.recovered >= 0.99, one.silo
        assert min(one.columns.values()) >= 0.97
        assert one.guess < 0.9
    assert "<i>bias" not in found[0].columns


def test_who_has_half_of_the_rows_learns_to_read_the_others_and_groups_of_them(done):
    for line in ("inverse", "property"):
        for one in all_of(done, line, PLAIN):
            assert one.recovered >= 0.94, (line, one.silo)
            assert 0.4 < one.guess < 0.95
            assert one.known == done.num_rows // 2
    assert done.worst("property", PLAIN).measure == "AUC"
    # Half of the rows are more than all silos have columns: masks do not help.
    assert done.worst("inverse", MASKED).recovered > 0.9


def test_slopes_say_which_minibatches_have_many_labels_of_a_class_randomised_labels_less_often(done):
    assert done.worst("label property", AT_ONE).recovered == 1.0
    assert 0.5 < done.worst("label property", AT_ONE_DP).recovered < 0.9
    assert all_of(done, "label property", PLAIN) == []


def test_summed_blocks_do_not_hide_rows_from_the_silos_own_hub(done):
    assert all(one.recovered >= 0.99 for one in all_of(done, "own hub", SUMMED))
    assert "does not help: phi of every row still reaches the hub" in reading(done.worst("own hub", SUMMED))


def test_slopes_are_binary_labels(done):
    for line in ("labels of hub", "labels of client", "clusters"):
        assert done.worst(line, AT_ONE).recovered == 1.0
        assert done.worst(line, AT_ONE).guess == 0.5
    assert done.worst("labels of hub", AT_ONE).party == "hub.silo2"
    assert done.worst("labels of hub", PLAIN).holds


def test_masks_hide_who_contributed_what(done):
    for one in all_of(done, "split", PLAIN):
        assert one.recovered == pytest.approx(1)
    for one in all_of(done, "split", MASKED):
        assert one.recovered <= one.guess + 0.1
    for one in all_of(done, "first block", MASKED):
        assert one.recovered <= one.guess + 1e-6


def test_masks_do_not_hide_a_silo_from_an_attacker_who_knows_enough_rows(done):
    few, more = done.worst("few known rows", MASKED), done.worst("known rows", MASKED)
    assert few.recovered < 0.9 < more.recovered
    assert more.known == 11 + 10 + 4
    assert "Masks do not change that" in reading(more)


@pytest.mark.parametrize(
    ("line", "mode"), [("labels of hub", DP), ("labels of hub", AT_ONE_DP), ("clusters", AT_ONE_DP)]
)
def test_randomised_labels_give_no_more_than_epsilon_allows(done, line, mode):
    found = done.worst(line, mode)
    assert found.bound == pytest.approx(CHANCE)
    assert 0.5 < found.recovered <= CHANCE + 3 * math.sqrt(CHANCE * (1 - CHANCE) / done.num_rows)


def test_a_client_sees_its_own_rows_only(done, planned):
    found = done.worst("client", PLAIN)
    assert found.party.startswith("client.silo")
    assert found.sees.startswith("the sum of the phi of")
    assert found.recovered > found.guess


def test_membership_is_a_coin_here(done):
    for mode in done.modes:
        assert done.worst("membership", mode).recovered == pytest.approx(0.5, abs=0.06)


def test_more_rounds_and_more_known_rows_give_more(done):
    for sweep in done.over_rounds:
        assert sweep.y[0] < 0.8
        assert sweep.y[-1] >= 0.97, sweep.label
    plain, masked, guess = done.over_known_rows
    assert plain.y[-1] >= 0.99
    assert max(guess.y) < 0.9
    # In between a mask is worth some rows.
    assert any(hidden < seen - 0.02 for seen, hidden in zip(plain.y, masked.y, strict=True))


def test_samples_that_were_in_no_minibatch_are_left_out(planned):
    few = planned._replace(settings=replace(planned.settings, batch_size=8, local_steps=1))
    (found,) = all_of(audit(few, rounds=3, modes=[AT_ONE]), "clusters", AT_ONE)
    assert 0.4 <= found.recovered <= 1


def test_the_same_seed_gives_the_same_findings(done, planned):
    again = audit(planned, rounds=40, modes=[PLAIN])
    assert again.findings == [one for one in done.findings if one.mode == PLAIN]


def test_the_page_is_well_formed_and_escapes_names(done, tmp_path, monkeypatch):
    path = write_page(done, tmp_path / "new")
    text = path.read_text()
    assert path == tmp_path / "new" / "audit.html"
    assert "<b>" not in text
    assert "<i>" not in text
    read = Page(text)
    assert read.tags.count("svg") == 2
    assert "<b>breast & co" in read.texts
    assert any("<i>" in words for words in read.texts)
    told = json.loads((tmp_path / "new" / "audit.json").read_text())
    assert len(told["findings"]) == len(done.findings)
    assert told["modes"][0] | {"configured": True, "labels": "labels everywhere"} == told["modes"][0]
    assert page(done) == text


def test_the_terminal_has_a_table_for_each_place_of_labels(done):
    (everywhere, first), (at_one, second) = overview(done)
    assert (everywhere, at_one) == ("labels everywhere", "labels at silo1")
    assert first.head == ["", "plain *", "masked", "blocks summed", "label DP"]
    assert ["own hub", "1.00/0.00", "1.00/0.00", "1.00/0.00", "1.00/0.00"] in first.rows
    assert [row[1] for row in second.rows if row[0] == "labels of hub"] == ["1.00/0.50"]


def test_every_red_cell_says_what_to_do_and_no_other(done):
    shown = page(done)
    for key in done.lines:
        worst = [finding for finding in (done.worst(key, mode) for mode in done.modes) if finding is not None]
        red = [finding for finding in worst if finding.gain >= 0.1 and not finding.holds]
        assert {bool(remedy(finding)) for finding in red} <= {True}
        assert not any(remedy(finding) for finding in worst if finding not in red)
        for finding in red:
            assert f"What to do now: {remedy(finding)}" in html.unescape(shown)
    assert {line.key for line in LINES} == {*_REMEDIES}


def test_scores_compare_modes(done):
    scores = {mode.name + " at one" * (mode in (AT_ONE, AT_ONE_DP)): done.score(mode) for mode in done.modes}
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores["plain"] < scores["masked"]
    assert scores["plain at one"] < scores["label DP at one"]
    # By hand, from the findings.
    kept = []
    for key in done.lines:
        finding = done.worst(key, PLAIN)
        if finding is None or finding.holds or finding.recovered is not None:
            kept.append(1.0 if finding is None else 0.0 if finding.holds else 1 - finding.gain)
    assert scores["plain"] == pytest.approx(np.mean(kept))
    # Masks and sums leave the model as it is; randomised labels do not.
    utilities = [done.utility(mode) for mode in done.modes]
    assert utilities[0] == utilities[1] == utilities[2] > 0.95
    assert 0.5 < done.utility(DP) < utilities[0]
    gaps = 1 - done.score(DP), max(utilities) - done.utility(DP)
    assert done.distance(DP) == pytest.approx(math.hypot(*gaps) / math.sqrt(2))
    assert done.distance(MASKED) < done.distance(PLAIN)


def test_every_line_has_readings():
    assert set(_OUTCOMES) == {line.key for line in LINES}


def test_modes_fit_the_federation(planned):
    names = [mode.name for mode in modes_of(planned, 2.0)]
    dp = "label DP, ε\u00a0=\u00a02"
    assert names == ["plain", "masked", "8 bits", "4 bits", "blocks summed", dp, "plain", "masked", "blocks summed", dp]
    two = plan(check_config({**KEYS, "data": {"source": "diabetes"}, "federation": {"silos": 2, "clients": 2}}))
    assert [mode.name for mode in modes_of(two, 1.0)] == ["plain", "8 bits", "4 bits", "plain"]
    asked = plan(check_config({**KEYS, "exchange": {"phi_bits": 8}}))
    assert [mode.name for mode in modes_of(asked, 1.0) if is_configured(mode, asked)] == ["8 bits"]


@pytest.mark.parametrize(
    ("keys", "options", "sentence"),
    [
        ({"federation": {"silos": 1}}, {}, "there is one silo, and no other party that could see anything"),
        ({"train": {"algorithm": "sgd"}}, {}, "train.algorithm = 'sgd': an audit attacks"),
        (
            {"train": {"class_weights": "balanced"}},
            {},
            "no attack here looks at weights, and with labels at one silo the others get them as they are",
        ),
        ({}, {"rounds": 1}, "rounds = 1: an audit needs 2 rounds or more"),
        ({}, {"epsilon": 0.0}, "epsilon = 0: it must be a positive number"),
        ({"train": {"step_size": 3e38}}, {"modes": [PLAIN], "rounds": 4}, "the blocks stop being finite"),
    ],
)
def test_what_cannot_be_audited_is_refused(keys, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        audit(plan(check_config(KEYS | keys)), **options)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("exchange", "Quantised(bits=4)"),
        ("client_exchange", "Quantised(bits=8)"),
        ("block_exchange", "QuantisedChange(bits=8)"),
    ],
)
def test_a_variant_with_a_wire_form_of_its_own_is_refused(part, value, tmp_path, monkeypatch):
    code = f"import tdcd\nfrom tdcd.core.codecs.quantised import *\nVARIANT = tdcd.Variant({part}={value})\n"
    (tmp_path / "wire_variant.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "wire_variant", raising=False)
    planned = plan(check_config({**KEYS, "train": {"variant": "wire_variant:VARIANT"}}))
    with pytest.raises(ValueError, match=rf"train.variant = 'wire_variant:VARIANT': .* {part} = {re.escape(value)}"):
        audit(planned, rounds=2, modes=[PLAIN])


def test_what_the_configuration_asks_for_is_among_the_modes_and_marked():
    federation = {"silos": 3, "clients": 3}
    several = {"protect": "mask", "protect_blocks": True}
    asked = {
        "plain": {},
        "masked": {"exchange": {"protect": "mask"}},
        "blocks summed": {"exchange": {"protect_blocks": True}},
        "8 bits": {"exchange": {"phi_bits": 8}},
        "as configured": {"federation": {**federation, "labels": "silo2", "label_epsilon": 2.0}, "exchange": several},
    }
    for name, keys in asked.items():
        config = check_config(KEYS | {"federation": federation} | keys)
        planned = plan(check_config(KEYS))._replace(config=config)
        if config.federation.labels:
            planned = planned._replace(variant=replace(planned.variant, knowledge=LabelsAt(1)))
        found = modes_of(planned, 2.0)
        assert [mode.name for mode in found if is_configured(mode, planned)] == [name]


@pytest.fixture(scope="module")
def encrypted():
    """Two silos, slopes encrypted, and the same as they are: large minibatches, and small ones with labels at silo2."""
    pytest.importorskip("tenseal")

    def audited(batch_size, labels):
        federation = {"silos": 2, "clients": 3, "labels": labels, "protect_labels": "encrypt"}
        train = {"step_size": 0.05, "local_steps": 1, "batch_size": batch_size}
        found = plan(check_config({**KEYS, "federation": federation, "train": train}))
        modes = [mode for mode in modes_of(found, 1.0) if mode.name in ("plain", "encrypted slopes")]
        done = audit(found, rounds=40, modes=[mode for mode in modes if not mode.knowledge.are_labels_everywhere])
        assert [is_configured(mode, found) for mode in done.modes] == [False, True]
        return done

    return audited(400, "silo1"), audited(16, "silo2")


def test_noise_on_phi_keeps_every_attack_on_a_row_under_the_bound_of_its_epsilon():
    train = {"step_size": 0.05, "rounds": 3, "minibatches": "full"}
    found = plan(check_config({**KEYS, "train": train, "exchange": {"epsilon": 1.0, "clip": 0.3}}))
    noisy = [mode for mode in modes_of(found, 1.0) if mode.noise is not None]
    assert [(mode.name, is_configured(mode, found)) for mode in noisy] == [
        ("noise on phi, ε\u00a0=\u00a01", True),
        ("noise on phi, ε\u00a0=\u00a01", False),
    ]
    done = audit(found, rounds=60, modes=[PLAIN, noisy[0]])
    # The noise is for the planned rounds, and there are no others; the last evaluation is not looked at.
    assert done.rounds == 3
    for one in all_of(done, "two rows", noisy[0]):
        assert CHANCE - 0.05 < one.bound < CHANCE
        assert one.recovered <= one.bound + 3 * math.sqrt(one.bound * (1 - one.bound) / done.num_rows)
    for line in ("few known rows", "known rows"):
        assert done.worst(line, noisy[0]).recovered < 0.05 < done.worst(line, PLAIN).recovered
    for line in ("inverse", "property"):
        seen, bare = done.worst(line, noisy[0]), done.worst(line, PLAIN)
        assert seen.gain < 0.1 < bare.gain
    # Inside a silo there is no noise.
    assert done.worst("own hub", noisy[0]).recovered > 0.1
    assert done.worst("two rows", PLAIN).recovered == 1
    assert f"right in {one.bound:.2f} of cases at most" in page(done)
    assert '"sigma"' in json.dumps(numbers(done))


def test_two_rows_at_the_ends_of_what_is_sent_are_distinguished_as_often_as_the_noise_allows():
    """Rows c and -c, the worst two, n times: the closed form is the normal distribution at sqrt(n) / sigma."""
    from tdcd.audit.attacks import told_apart
    from tdcd.core.codecs.codec import Sending, seed_words
    from tdcd.core.codecs.noise import GaussianNoise

    count, messages, noise = 4000, 6, GaussianNoise.of_epsilon(1.0, 1e-5, 0.3, 6)
    rows = np.where(np.arange(count) % 2, 0.3, -0.3).astype(np.float32)[None, :, None]
    sent = [np.asarray(noise.encode(rows, Sending(seed_words(5), at, 0))["phi"])[0] for at in range(messages)]
    expected = np.repeat(rows[0][:, None].astype(np.float64), messages, axis=1)
    right = told_apart(np.stack(sent, axis=1), expected, np.full((count, messages), noise.deviation**-2))
    known = (1 + math.erf(math.sqrt(messages) / noise.sigma / math.sqrt(2))) / 2
    assert abs(right - known) < 4 * math.sqrt(known * (1 - known) / count)
    assert right < (math.exp(noise.epsilon(messages)) + noise.delta) / (1 + math.exp(noise.epsilon(messages)))


@pytest.mark.parametrize("line", ["labels of hub", "labels of client", "clusters"])
def test_ciphertexts_of_slopes_are_no_labels(encrypted, line):
    """The attacks see real ciphertexts. An AUC over 455 samples, half of them at a client, has a spread of 0.03."""
    for done in encrypted:
        plain, mode = done.modes
        # Of small minibatches, some samples are in none.
        assert done.worst(line, plain).recovered > (0.99 if done is encrypted[0] else 0.85)
        assert done.worst(line, mode).recovered < 0.6
        assert "say nothing of the labels" in reading(done.worst(line, mode))


def test_gradients_say_what_the_model_says_and_on_small_minibatches_more(encrypted):
    """With 400 of 455 samples in each minibatch, and 15 columns, equations repeat; with 16 they add up to slopes."""
    large, small = (done.worst("sums", done.modes[1]) for done in encrypted)
    assert large.recovered <= large.guess + 0.01
    assert small.recovered > 0.5
    assert "the labels, from its gradients" in page(encrypted[0])


def test_gradients_say_the_share_of_a_class_to_who_has_as_many_columns_as_a_minibatch_has_samples(encrypted):
    large, small = (done.worst("label property", done.modes[1]) for done in encrypted)
    assert large.recovered == large.guess
    assert small.recovered > max(0.95, small.guess + 0.05)
    assert "larger minibatches, and no bins in the silos without labels" in remedy(small)


def test_gradients_say_the_share_of_a_class_to_who_has_the_column_of_ones_which_is_where_the_labels_are():
    """Wherever the labels are; also where the audit asks what encryption would do. The same silo with that column says
    nearly all.
    """
    pytest.importorskip("tenseal")

    def found(protect):
        federation = {"silos": 2, "clients": 3, "labels": "silo2", "protect_labels": protect}
        train = {"step_size": 0.05, "local_steps": 1, "batch_size": 200}
        return plan(check_config({**KEYS, "federation": federation, "train": train}))

    def share(planned):
        (mode,) = [mode for mode in modes_of(planned, 1.0) if mode.name == "encrypted slopes"]
        return audit(planned, rounds=24, modes=[mode]).worst("label property", mode)

    encrypts = found("encrypt")
    shop, bank = encrypts.federation.silos
    assert (shop.columns[-1], bank.columns[-1]) == ("smoothness error", "bias")
    moved = replace(encrypts.federation, silos=(shop.with_ones(), bank.without_ones()))
    for planned in (encrypts, found("none")):
        hidden = share(planned)
        assert hidden.recovered == hidden.guess
    told = share(encrypts._replace(federation=moved))
    assert told.recovered > max(0.9, told.guess + 0.05)


def test_the_first_step_of_a_silo_is_the_covariance_of_its_columns_and_the_labels():
    """A linear block starts at zero: what it becomes in a round says that much, whatever hides the slopes."""
    federation = {"silos": 2, "clients": 3, "labels": "silo1", "protect_labels": "encrypt"}
    train = {"step_size": 0.05, "local_steps": 1, "batch_size": 455, "rounds": 1}
    found = plan(check_config({**KEYS, "federation": federation, "train": train}))
    _, block = train_plan(found).blocks.values()
    weight, features = np.asarray(block["weight"])[:, 0], found.federation.silos[1].features
    sums = features.T @ (0.5 - found.federation.labels) / len(features)
    assert np.allclose(weight, -0.05 * sums, atol=0.05 * 2**-10)
    assert auc(features @ weight, found.federation.labels == 1) > 0.9


def test_gradients_of_as_many_equations_as_samples_are_the_slopes():
    from tdcd.audit.attacks import labels_from_sums

    generator = np.random.default_rng(0)
    features, slopes = generator.normal(size=(60, 5)), generator.normal(size=(60, 2))
    drawn = [generator.permutation(60)[:20] for _ in range(40)]
    gradients = [features[ids].T @ slopes[ids] / 20 for ids in drawn]
    assert np.corrcoef(labels_from_sums(drawn, gradients, features).ravel(), slopes.ravel())[0, 1] > 0.99
    few = labels_from_sums(drawn[:2], gradients[:2], features)
    assert np.corrcoef(few.ravel(), slopes.ravel())[0, 1] < 0.8
