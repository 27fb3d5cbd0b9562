"""What months bring to services that stand by, as processes: members that join, and the next training with them."""

import pytest
from test_standing_parties import BANK, SHOP, by_hand, job_by_command, job_of, standing

from support.command import tdcd
from support.party_processes import assert_bit_identical, processes, wait_until
from support.standing import StandingFederation
from tdcd.federation import hub_of
from tdcd.records.history import read_history

COMPANIES = {"bank": ["north"], "shop": ["main"]}
LARGER = {"bank": ["north", "south"], "shop": ["main"], "bureau": ["east"]}
BUREAU, NEW = "hub.bureau", ["hub.bureau", "client.bank.south", "client.bureau.east"]


def common_ids(federation, state):
    """What the hubs have found, the same at all."""
    found = {(federation.home(hub).job_folder(state) / "ids.txt").read_text() for hub in federation.hubs}
    assert len(found) == 1
    return {*found.pop().split()}


def test_a_client_and_a_company_join_and_the_next_training_starts_from_the_last_one(tmp_path):
    federation = StandingFederation(tmp_path / "it", COMPANIES, [("bank", ["south"]), ("bureau", ["east"])])
    for hub in (BANK, SHOP):
        federation.write_policy(hub, kinds=["train", "join"], members=NEW, jobs_per_day=4)
    with standing(federation) as (services, start):
        first = job_by_command(federation, services, federation.shared)
        train = federation.keys["train"] | {"start": first.name}
        larger, later = federation.enlarged(LARGER, train=train), federation.enlarged(LARGER, "later.toml")
        federation.write_policy(BUREAU, jobs_per_day=4)
        services |= {party: start(party) for party in NEW}
        words = ["propose", larger, "--join", "--purpose", "test", "--party", federation.own(SHOP)]
        name = tdcd(*words, cwd=tmp_path).stdout.split()[-1]
        # All who are there approve it by their policies; the new company's person sees it then.
        wait_until(lambda: job_of(federation, BUREAU, name) is not None, *services.values())
        wait_until(lambda: federation.home(BUREAU).has_joined, *services.values())
        assert tdcd("approve", name[:8], "--party", federation.own(BUREAU), cwd=tmp_path).exit_code == 0
        wait_until(
            lambda: all(federation.home(party).jobs().joined == name for party in federation.parties),
            *services.values(),
        )
        second = job_by_command(federation, services, larger)
        # New rows at all clients: what was common is not compared again.
        ids = common_ids(federation, second)
        federation.add_rows(20)
        third = job_by_command(federation, services, later, "--known", second.name)
        assert common_ids(federation, third) == federation.common_ids() > ids
        # The others restarted nothing.
        assert all(process.poll() is None for process in services.values())
    started = {hub_of(silo): ["--start", federation.home(hub_of(silo)).job_folder(first) / "run"] for silo in COMPANIES}
    with processes(tmp_path) as run:
        reference = by_hand(federation, run, larger, started | {BUREAU: ["--cold"]}, "former.csv")
    for hub, folder in reference.items():
        assert_bit_identical(federation.home(hub).job_folder(second) / "run", folder)
    ended, begun = (
        read_history(federation.home(BANK).job_folder(job) / "run" / "history.jsonl") for job in (first, second)
    )
    assert begun[0].train_loss == pytest.approx(ended[-1].train_loss, rel=0.2)
    assert begun[0].train_loss < 0.9 * ended[0].train_loss
    checked = tdcd("verify", federation.home("client.bureau.east").folder, "--log", cwd=tmp_path)
    assert (
        f"join of {', '.join(NEW)}, proposed by hub.shop; approved by {BANK}, {BUREAU}, {SHOP}; finished"
        in checked.stdout
    )
    assert checked.exit_code == 0
