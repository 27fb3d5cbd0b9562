"""Predictions across hubs: who gets which scores, and what stops them."""

import numpy as np
import pytest
from test_align import talk_all

from tdcd.alignment.ristretto import hash_to_points
from tdcd.config import check_config
from tdcd.prediction.scores import SiloScores, combine
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import PredictScores
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.predict import ModelOf, PredictHub

MODEL = ModelOf("abc", "finished")
SILOS = [{"name": name} for name in ("bank", "shop", "bureau")]
IDS = {"bank": ["1", "2", "3"], "shop": ["3", "2", "9"], "bureau": ["2", "1", "7", "3"]}


def hubs(models=None, rounds=200, without=(), to=(), spends=None, **federation):
    rng = np.random.default_rng(0)
    job = Job(check_config({"silos": SILOS, "train": {"step_size": 0.05, "rounds": rounds}, "federation": federation}))
    return {
        silo: PredictHub(
            job,
            index,
            SiloScores(ids, rng.normal(size=(len(ids), 2)).astype(np.float32)),
            (models or {}).get(silo, MODEL),
            [f"hub.{gone}" for gone in without],
            to=to,
            spend=lambda peer, rows, silo=silo: None if spends is None else spends.append((silo, peer, rows)),
        )
        for index, (silo, ids) in enumerate(IDS.items())
        if silo not in without
    }


def test_every_hub_gets_the_others_scores_of_its_own_ids_and_no_others():
    talks = hubs()
    outcomes = talk_all(talks.values())
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}
    for silo, hub in talks.items():
        for peer, part in hub.parts.items():
            theirs = talks[peer.removeprefix("hub.")].own
            assert list(part.ids) == [one for one in IDS[silo] if one in theirs.ids]
            rows = [list(theirs.ids).index(one) for one in part.ids]
            assert (part.phi == theirs.phi[rows]).all()
    bank = talks["bank"]
    parts = {"bank": bank.own, "shop": bank.parts["hub.shop"], "bureau": bank.parts["hub.bureau"]}
    found = combine(parts, allow_missing=True)
    assert list(found.ids) == ["1", "2", "3"]
    assert [list(silos) for silos in found.missing] == [["shop"], [], []]
    bureau = talks["bureau"]
    parts = {"bank": bureau.parts["hub.bank"], "shop": bureau.parts["hub.shop"], "bureau": bureau.own}
    assert list(combine(parts, allow_missing=True, in_order_of="bureau").ids) == IDS["bureau"]


def test_hubs_predict_without_one_that_is_missing():
    talks = hubs(without=["shop"])
    assert {outcome.status for outcome in talk_all(talks.values()).values()} == {"finished"}
    assert {silo: [*hub.parts] for silo, hub in talks.items()} == {"bank": ["hub.bureau"], "bureau": ["hub.bank"]}
    labels = hubs(without=["bureau"], labels="shop")
    assert {outcome.status for outcome in talk_all(labels.values()).values()} == {"finished"}
    assert [*labels["shop"].parts] == ["hub.bank"]


def test_blocks_of_different_runs_are_not_added_up():
    outcomes = talk_all(hubs(models={"shop": ModelOf("xyz", "finished")}).values())
    assert {outcome.status for outcome in outcomes.values()} == {"refused"}
    assert any("the blocks do not belong together" in outcome.reason for outcome in outcomes.values())


def test_hubs_with_different_files_are_distinguished():
    talks = hubs()
    talks["shop"] = hubs(rounds=7)["shop"]
    assert any("train.rounds is" in outcome.reason for outcome in talk_all(talks.values()).values())


def test_only_the_silo_with_labels_gets_scores():
    talks = hubs(labels="shop")
    outcomes = talk_all(talks.values())
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}
    shop = talks["shop"]
    assert {peer: list(part.ids) for peer, part in shop.parts.items()} == {
        "hub.bank": ["3", "2"],
        "hub.bureau": ["3", "2"],
    }
    for silo in ("bank", "bureau"):
        assert talks[silo].parts == {}
        assert talks[silo].partners == ("hub.shop",)
        with pytest.raises(RejectedMessage, match="'predict_scores' was not requested"):
            talks[silo].receive(shop_scores(silo))


def test_only_chosen_hubs_get_scores():
    everyone, talks = hubs(), hubs(to=["hub.shop"])
    talk_all(everyone.values())
    assert {outcome.status for outcome in talk_all(talks.values()).values()} == {"finished"}
    for peer, part in everyone["shop"].parts.items():
        assert talks["shop"].parts[peer].ids == part.ids
        assert (talks["shop"].parts[peer].phi == part.phi).all()
    for silo in ("bank", "bureau"):
        assert talks[silo].partners == ("hub.shop",)
        assert talks[silo].parts == {}
        with pytest.raises(RejectedMessage, match="'predict_scores' was not requested"):
            talks[silo].receive(shop_scores(silo))


def test_every_hub_counts_what_it_sends_to_whom_before_it_does():
    spends = []
    talk_all(hubs(spends=spends, labels="shop").values())
    assert sorted(spends) == [("bank", "hub.shop", 2), ("bureau", "hub.shop", 2)]
    spends.clear()
    talk_all(hubs(spends=spends).values())
    assert sorted(spends)[:2] == [("bank", "hub.bureau", 3), ("bank", "hub.shop", 2)]
    assert len(spends) == 6


def shop_scores(silo):
    numbers = Array.of(np.zeros(1, np.int64)), Array.of(np.zeros((1, 2), np.float32))
    return PredictScores("hub.shop", f"hub.{silo}", places=numbers[0], phi=numbers[1])


def test_who_knows_all_ids_and_the_federations_secret_can_list_none_of_what_a_hub_sends():
    """Six-digit ids: a peer tries all that there are, as it could with keyed digests."""
    ids = [str(number) for number in range(100_000, 100_300)]
    job = Job(check_config({"silos": SILOS, "train": {"step_size": 0.05}}))
    phi = np.zeros((len(ids), 1), np.float32)
    (hello, _), (again, _) = (PredictHub(job, 0, SiloScores(ids, phi), MODEL).start() for _ in range(2))
    guesses = {row.tobytes() for row in hash_to_points(ids)}
    sent, sent_again = ({row.tobytes() for row in message.points.values} for message in (hello, again))
    assert not sent & guesses
    assert not sent & sent_again


def test_answers_to_a_process_that_has_ended_are_not_taken_for_those_to_the_next_one():
    former, current, shop = hubs(without=["bureau"])["bank"], *hubs(without=["bureau"]).values()
    greeting, own_greeting = shop.start()[0], current.start()[0]
    stale = [greeting, *shop.receive(former.start()[0])]
    (returned,) = former.receive(greeting)
    stale += shop.receive(returned)
    assert [message.kind for message in stale] == ["predict_hello", "predict_returned", "predict_scores"]
    # The bank's hub was killed and comes back: its peer sends it everything again, and then answers it.
    (its_returned,) = current.receive(stale[0])
    for answer in stale[1:]:
        with pytest.raises(RejectedMessage, match="compared before one of the hubs came back"):
            current.receive(answer)
    (again,) = shop.receive(own_greeting)
    current.receive(again)
    # Nor is what the former process had still to say.
    with pytest.raises(RejectedMessage, match="compared before one of the hubs came back"):
        shop.receive(returned)
    (scores,) = shop.receive(its_returned)
    current.receive(scores)
    assert current.done
    assert [*current.parts["hub.shop"].ids] == ["2", "3"]
    assert (current.parts["hub.shop"].phi == shop.own.phi[[1, 0]]).all()
