"""Audits as jobs: what a client audits, who is given which figures, and what is refused."""

import csv
import json

import pytest

from support.dialogues import Dialogues
from support.standing import StandingFederation
from support.well_formed import Page
from tdcd.config import check_config, read_config
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import AuditFigure
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.standing.audit import AuditClient, AuditHub, stand_in, worst_of, write_report
from tdcd.standing.facts import not_audited

pytestmark = pytest.mark.quick

SILOS = [
    {"name": "bank", "clients": ["n", "s"], "features": ["age", "income"], "label": "y"},
    {"name": "shop", "clients": ["m"], "features": ["debt", "kind"], "categorical": ["kind"]},
    {"name": "bureau", "clients": ["e"]},
]
CONFIG = check_config({"data": {"source": "files"}, "silos": SILOS, "federation": {"labels": "bank"}})


def figure(line, recovered, guess=0.0):
    return AuditFigure(line=line, measure="AUC", recovered=recovered, guess=guess)


FIGURES = {
    "client.bank.n": [figure("own hub", 0.5), figure("client", 0.75, 0.5)],
    "client.bank.s": [figure("own hub", 0.25), figure("client", 0.9, 0.9)],
    "client.shop.m": [figure("own hub", 1.0)],
    "client.bureau.e": [figure("own hub", 0.0)],
}


class AuditStep(Dialogues):
    """The parties of an audit."""

    def __init__(self):
        self.job = Job(CONFIG)
        super().__init__(self.dialogue, [*self.job.hubs, *FIGURES])

    def dialogue(self, party):
        silo = self.job.config.silo_names.index(party.split(".")[1])
        if party in self.job.hubs:
            return AuditHub(self.job, silo, "hub.shop")
        return AuditClient(self.job, silo, party, FIGURES[party])

    @property
    def result(self):
        hub = self.ended.get("hub.shop")
        return hub and hub.dialogue.of_silos


def test_the_proposer_gets_the_worst_of_each_silos_clients_and_other_hubs_their_own_clients_figures(tmp_path):
    step = AuditStep().run()
    assert {session.outcome.status for session in step.ended.values()} == {"finished"}
    assert len(step.ended) == 7
    worst = {"hub.bank": [figure("client", 0.75, 0.5), figure("own hub", 0.5)]}
    expected = worst | {"hub.shop": FIGURES["client.shop.m"], "hub.bureau": FIGURES["client.bureau.e"]}
    assert step.result == expected
    assert step.ended["hub.bank"].dialogue.of_silos == worst
    assert step.ended["hub.bureau"].dialogue.of_silos == {"hub.bureau": FIGURES["client.bureau.e"]}
    write_report(step.job, step.result, tmp_path)
    texts = Page((tmp_path / "audit.html").read_text()).texts
    assert {"bank", "shop", "bureau", "0.75", "50%"} <= {*texts}
    assert json.loads((tmp_path / "audit.json").read_text())["hub.shop"][0]["recovered"] == 1.0
    counts = {party: session.endpoint.transport.num_sent for party, session in step.ended.items()}
    for party, count in counts.items():
        for number in range(1, count + 1):
            again = AuditStep().run({party: (number, True)})
            assert again.result in (expected, None)
            assert again.is_lost or again.result is not None


def test_figures_that_were_not_requested_are_rejected():
    job = Job(CONFIG)
    hub, client = AuditHub(job, 0, "hub.shop"), AuditClient(job, 0, "client.bank.n", [])
    (message,) = client.start()
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(RejectedMessage, match="not finite"):
            hub.receive(message.replace(figures=[figure("own hub", wrong)]))
    assert worst_of([figure("a", 0.5), figure("a", 0.8, 0.7), figure("b", 0.1)]) == [figure("a", 0.5), figure("b", 0.1)]


@pytest.mark.parametrize("labels", [None, "bank", "shop"])
def test_a_client_audits_its_own_table_next_to_random_ones(tmp_path, labels):
    federation = StandingFederation(tmp_path / "it")
    keys = federation.keys | {"exchange": {"protect_blocks": False}}
    if labels is not None:
        keys["federation"] = {"labels": labels}
        keys["silos"] = [
            silo if silo["name"] == labels else {key: silo[key] for key in silo if key != "label"}
            for silo in keys["silos"]
        ]
    table, ids = tmp_path / "it" / "client.bank.north" / "data.csv", tmp_path / "ids.txt"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    ids.write_text("\n".join(row["id"] for row in rows[3:]))
    path, count = stand_in(check_config(keys), "bank", table, ids, tmp_path / "audit")
    assert count == len(rows) - 3
    config = check_config(read_config(path))
    assert config.data.align
    assert [silo.table for silo in config.silos] == [str(table), str(tmp_path / "audit" / "shop.csv")]
    with (tmp_path / "audit" / "shop.csv").open(newline="") as file:
        random = list(csv.DictReader(file))
    assert [row["id"] for row in random] == [row["id"] for row in rows[3:]]
    assert [*random[0]] == ["id", "debt", "visits", *(["bought"] if labels != "bank" else [])]
    if labels is None:
        assert [row["bought"] for row in random] == [row["bought"] for row in rows[3:]]


THREE_CLIENTS = [{**silo, "clients": ["a", "b", "c"], "label": "y"} for silo in SILOS]


def test_a_client_audits_with_the_noise_on_phi_that_is_asked_for(tmp_path):
    federation = StandingFederation(tmp_path / "it")
    config = check_config(federation.keys | {"exchange": {"epsilon": 0.5, "clip": 0.1}})
    assert not_audited(config) == []
    table = tmp_path / "it" / "client.bank.north" / "data.csv"
    path, _ = stand_in(config, "bank", table, None, tmp_path / "audit")
    made = check_config(read_config(path))
    assert (made.exchange.epsilon, made.exchange.clip) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"data": {"source": "files", "samples": "all"}}, "an audit needs samples that all silos have"),
        ({"train": {"silo_dropout": 0.5}}, "takes phi of every sample"),
        (
            {"exchange": {"protect_blocks": True, "block_epsilon": 4.0}, "silos": THREE_CLIENTS},
            "exchange.block_epsilon = 4: an audit takes blocks as they are",
        ),
    ],
)
def test_what_an_audit_does_not_know_is_refused_when_it_is_proposed(keys, text):
    silos = [{**silo, "label": "y"} for silo in SILOS]
    (problem,) = not_audited(check_config({"data": {"source": "files"}, "silos": silos} | keys))
    assert text in problem
