"""What parties that stand by say to each other, without processes: they share a network inside this one."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from support.command import tdcd
from support.simulated import with_keys
from support.standing import Office, StandingFederation
from tdcd.config import ConfigError
from tdcd.config.reading import read_toml
from tdcd.records.run_folder import toml_text
from tdcd.runtime.certificates.check import when
from tdcd.runtime.certificates.issue import make_request, revoke, sign
from tdcd.runtime.certificates.revocation import LOOK_S
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.standing.description import _protection, describe
from tdcd.standing.facts import Facts
from tdcd.standing.home import Home, open_log_of
from tdcd.standing.service import MadeWay
from tdcd.standing.statements import (
    Approved,
    Called,
    Entries,
    LogEntry,
    Proposed,
    Refused,
    Rejected,
    SignedEntry,
    StepEnded,
    read_line,
    read_message,
    written,
)
from tdcd.standing.step import REFUSED, JobPart, MakingWay

COMPANIES = {"bank": ["north"], "shop": ["main"], "bureau": ["east", "west"]}
BANK, SHOP, BUREAU = "hub.bank", "hub.shop", "hub.bureau"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return StandingFederation(tmp_path_factory.mktemp("federation") / "it", COMPANIES)


@pytest.fixture
def office(files, monkeypatch):
    monkeypatch.setattr("tdcd.standing.service.TICK_S", 0.0)
    files.reset()
    return Office(files)


def statements(log, party):
    return [signed.entry.statement for signed in log.chains[party]]


def test_no_party_begins_before_every_organisation_has_approved_and_then_all_do(office):
    state = office.propose()
    assert set(office.settle().values()) == {None}
    for hub in (SHOP, BUREAU):
        named = office.jobs(hub).named(state.name[:8])
        assert f"{BUREAU} has not approved" in office.jobs(hub).in_words(named, office.clock)
        assert not any(home.jobs().states[state.name].calls for home in office.homes.values())
        office.homes[hub].approve(named)
        calls = office.settle()
    assert set(calls.values()) == {Called(state.name, "align", 1)}
    for home in office.homes.values():
        assert home.log.counts == office.homes[BANK].log.counts
        assert (home.party, Called(state.name, "align", 1)) in home.jobs().states[state.name].started


def test_steps_follow_when_all_have_ended_and_a_lost_part_is_done_again_by_all(office):
    state = office.propose(steps=("align", "train"))
    for hub in (SHOP, BUREAU):
        office.settle()
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    for step, attempt, ending in (("align", 1, "lost"), ("align", 2, "finished"), ("train", 1, "finished")):
        assert set(office.settle().values()) == {Called(state.name, step, attempt)}
        for party, home in office.homes.items():
            home.say(StepEnded(state.name, step, attempt, ending if party == BUREAU else "finished"))
    assert set(office.settle().values()) == {None}
    assert {home.jobs().states[state.name].closed for home in office.homes.values()} == {"finished"}


def test_jobs_run_one_after_the_other(office):
    first, second = (office.propose(steps=("train",)).name for _ in range(2))
    for hub in (SHOP, BUREAU):
        office.settle()
        for state in office.jobs(hub).states.values():
            office.homes[hub].approve(state)
    assert len({call.job for call in office.settle().values()}) == 1
    running = next(state for state in office.jobs().states.values() if state.call)
    waiting = office.jobs().states[({first, second} - {running.name}).pop()]
    assert office.jobs().in_words(waiting, office.clock) == f"approved; waits for job {running.name[:12]}"
    for home in office.homes.values():
        home.say(StepEnded(running.name, "train", 1, "finished"))
    assert {call.job for call in office.settle().values()} == {waiting.name}


@pytest.mark.parametrize("party", [SHOP, "client.bureau.west"])
def test_a_refused_job_is_over_for_all_even_while_it_runs(office, party):
    state = office.propose()
    for hub in (SHOP, BUREAU):
        office.settle()
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    assert None not in office.settle().values()
    office.homes[party].refuse(office.jobs(party).named(state.name), "not\nthis week")
    assert set(office.settle().values()) == {None}
    for home in office.homes.values():
        jobs = home.jobs()
        assert f"refused by {party}: not this week" in jobs.in_words(jobs.named(state.name), office.clock)


def forged(home, signer, **changes):
    """An entry in the next place of another party's chain, signed by somebody."""
    party = changes.pop("party")
    chain = home.log.chains[party]
    last = chain[-1].entry if chain else None
    place = {"number": len(chain), "previous": last.digest if last else "0" * 64}
    entry = LogEntry(
        **{"federation": home.log.federation, "party": party, "time": int(time.time()), **place, **changes}
    )
    return SignedEntry(entry, *signer.sign(entry.signed))


def test_an_approval_that_is_not_the_partys_is_refused_and_logged(office):
    state = office.propose()
    office.settle()
    evil, victim = office.homes[SHOP], office.homes[BANK]
    approval = Approved(state.name, state.offer.expires, "person")
    signed = forged(evil, evil.signer, party=BUREAU, statement=approval)
    own = evil.log.append(SHOP, evil.signer, approval)
    altered = msgspec.structs.replace(own, entry=msgspec.structs.replace(own.entry, party=BUREAU))
    again = msgspec.structs.replace(own, entry=msgspec.structs.replace(own.entry, number=1, previous=own.entry.digest))
    other = forged(evil, evil.signer, party=SHOP, federation="0" * 64, statement=approval)
    twice = forged(evil, evil.signer, party=SHOP, number=0, previous="0" * 64, statement=Rejected(SHOP, "x"))
    future = forged(evil, evil.signer, party=SHOP, time=int(time.time()) + 3600, statement=approval)
    endless = forged(evil, evil.signer, party=SHOP, time=2**37, statement=approval)
    with pytest.raises(RejectedMessage, match="it is not what parties that stand by send"):
        read_message(written(Entries([endless])))
    stranger = forged(evil, evil.signer, party=SHOP, statement=approval)
    stranger = msgspec.structs.replace(
        stranger, entry=msgspec.structs.replace(stranger.entry, party="hub.lab", number=0, previous="0" * 64)
    )
    victim.log.accept(own)
    for entry, why in (
        (signed, "entry 0 of hub.bureau comes with the certificate of hub.shop"),
        (altered, "entry 0 of hub.bureau comes with the certificate of hub.shop"),
        (again, "entry 1 of hub.shop is not signed with its certificate's key"),
        (other, "was signed for another federation"),
        (twice, "hub.shop signed another one in its place before"),
        (future, "is of the future"),
        (stranger, "is of no party of this federation"),
    ):
        with pytest.raises(RejectedMessage, match=why):
            victim.log.accept(entry)
    # The same, over the link; so is a certificate of no known version, which the library cannot read at all.
    certificate = own.certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05")
    unreadable = msgspec.structs.replace(own, certificate=certificate)
    office.desks[SHOP].endpoint.transport.send(BANK, written(Entries([unreadable])))
    office.desks[SHOP].endpoint.transport.send(BANK, written(Entries([signed])))
    office.settle()
    assert Rejected(SHOP, "entry 0 of hub.shop comes with no certificate of this federation's authority") in statements(
        office.homes[BANK].log, BANK
    )
    assert Rejected(SHOP, "entry 0 of hub.bureau comes with the certificate of hub.shop") in statements(
        office.homes["client.bureau.east"].log, BANK
    )
    assert BUREAU not in office.jobs(BANK).states[state.name].approvals


def has_company(files, client):
    """An authority of the bank's own, which has issued the client's certificate; the folder with its key."""
    company, issuer, name = files.folder / "company", files.folder / "issuer", "authority.bank"
    shutil.copy(sign(issuer, make_request(company, name)).certificate, company)
    shutil.copy(issuer / "ca.pem", company)
    sign(company, make_request(company, client))
    for party in (BANK, client):
        shutil.copy(company / f"{name}.pem", files.folder / party / "certs")
    for end in ("pem", "key"):
        shutil.copy(company / f"{client}.{end}", files.folder / client / "certs")
    return company


def test_a_client_that_its_company_has_revoked_says_nothing_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("tdcd.standing.service.TICK_S", 0.0)
    files, north, south = StandingFederation(tmp_path / "it"), "client.bank.north", "client.bank.south"
    company = has_company(files, north)
    office = Office(files)
    first, second = (office.propose(contact=contact) for contact in ("a", "b"))
    office.settle()
    office.homes[north].refuse(office.jobs(north).named(first.name), "no")
    office.settle()
    assert north in office.jobs(SHOP).states[first.name].refusals
    # While the services run.
    revoke(company, [north])
    shutil.copy(company / "revoked.bank.crl", files.folder / BANK / "certs")
    office.desks[BANK].decided_at = -math.inf
    office.settle()
    time.sleep(LOOK_S)
    office.homes[north].refuse(office.jobs(north).named(second.name), "no")
    # Whether it brings that itself, or another client does.
    office.homes[south].log.accept(*office.homes[north].log.chains[north])
    office.settle()
    for hub in (BANK, SHOP):
        assert office.homes[hub].log.counts[north] == 1
        assert not office.jobs(hub).states[second.name].refusals
    why = "entry 1 of client.bank.north comes with a certificate that was revoked"
    said = statements(office.homes[BANK].log, BANK)
    assert {Rejected(north, why), Rejected(south, why)} <= {*said}
    # What it said before stays said, and the log is one that can be checked.
    assert north in office.jobs(SHOP).states[first.name].refusals
    assert open_log_of(office.homes[BANK].folder).counts == office.homes[BANK].log.counts


def test_an_approval_that_was_there_before_is_no_news_and_one_for_another_job_approves_that_alone(office):
    first, second = (office.propose(contact=contact) for contact in ("a", "b"))
    office.settle()
    office.homes[SHOP].approve(office.jobs().named(first.name))
    office.settle()
    replayed = office.homes[BANK].log.chains[SHOP][0]
    assert office.homes[BANK].log.accept(replayed) is False
    assert SHOP not in office.jobs(BANK).states[second.name].approvals


def test_an_approval_that_has_expired_starts_nothing(office):
    state = office.propose(days=0.5)
    office.settle()
    for hub in (SHOP, BUREAU):
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    office.clock += 86_400
    assert set(office.settle().values()) == {None}
    jobs = office.jobs()
    assert f"the approval of {SHOP} expired on" in jobs.in_words(jobs.named(state.name), office.clock)
    assert not any(jobs.named(state.name).calls for _ in office.homes)
    late = office.propose(days=-1.0)
    with pytest.raises(ValueError, match="had to begin by"):
        office.homes[BANK].approve(late)


def test_a_hub_that_calls_too_early_has_nothing_computed(office):
    """The one that keeps the queue has no right that others do not check."""
    state = office.propose()
    office.settle()
    office.homes[SHOP].approve(office.jobs(SHOP).named(state.name))
    office.homes[BANK].say(Called(state.name, "align", 1))
    calls = office.settle()
    assert {calls[party] for party in office.homes} == {None}
    assert not office.jobs(BUREAU).states[state.name].started
    # Nor does another hub keep it.
    office.homes[SHOP].say(Called(state.name, "train", 1))
    office.settle()
    assert len(office.jobs(BUREAU).states[state.name].calls) == 1


def test_a_client_has_no_say_but_to_refuse(office):
    client = office.homes["client.shop.main"]
    state = office.propose()
    office.settle()
    with pytest.raises(ValueError, match=r"client\.shop\.main cannot approve a job: only hubs speak"):
        client.approve(client.jobs().named(state.name))
    client.say(Approved(state.name, state.offer.expires, "person"))
    client.say(Proposed(msgspec.structs.replace(state.offer, proposer="client.shop.main")))
    office.settle()
    assert [*office.jobs(BANK).states[state.name].approvals] == [BANK]
    assert len(office.jobs(BANK).states) == 1


def test_a_step_has_all_that_the_partys_own_file_says(office):
    """Limits of an account among them: a hub that stands by keeps to them as one that is started by hand."""
    limits = {"most_epsilon": 2.0, "most_label_epsilon": 3.0, "most_runs": 4}
    office.files.write_own(BANK, account="account.jsonl", metrics="9464", **limits)
    home, state = office.files.home(BANK), office.propose()
    own = JobPart(home, home.jobs().named(state.name), state.job)._own
    assert own.account == str(office.files.own(BANK).parent / "account.jsonl")
    assert own.model_dump(include={*limits}) == limits
    assert own.out == str(home.job_folder(state) / "run")
    # The service has that port.
    assert own.metrics is None
    left = home.epsilon_left(home.jobs(), int(office.clock))
    assert left == {"most_epsilon": (2.0, 2.0), "most_label_epsilon": (3.0, 3.0)}


def test_what_people_read_of_a_job_names_the_noise_on_phi_and_a_policy_judges_it(office):
    shared = read_toml(office.files.shared)
    silos = [silo if silo["name"] == "bank" else {**silo, "label": None} for silo in shared["silos"]]
    config = with_keys(shared, silos=silos, exchange={"epsilon": 3.0}, federation={"labels": "bank"})
    words = dict([_protection(config)])["protection"]
    assert "exchange.epsilon = 3.0 (noise on phi); exchange.block_epsilon = None (noise on blocks); fed" in words
    assert "federation.label_epsilon = None" in words
    offer = office.propose().offer
    # The hub with the labels sends slopes, which have no noise.
    assert [Facts.of(offer, config, silo, 0).phi_epsilon for silo in COMPANIES] == [None, 3.0, 3.0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"silos": []}, r"needs \[\[silos\]\] with tables"),
        ({"data": {"source": "digits"}}, "only tables have ids to align"),
        ({"model": {"block": "evil:block"}}, "evil:block"),
    ],
)
def test_a_job_of_others_or_with_code_is_not_even_proposed(office, change, why):
    path = office.files.folder / "job.toml"
    path.write_text(toml_text({**office.files.keys, **change}))
    with pytest.raises(ConfigError, match=why):
        office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)


@pytest.mark.parametrize(
    ("shared_file", "why"),
    [
        ("[" * 9, "not valid TOML"),
        ('[model]\nblock = "os:system"', "model.block = 'os:system': code is not a part of a job"),
        ("data = 3", "data = 3: must be a table of keys"),
    ],
)
def test_a_signed_proposal_of_nonsense_or_code_is_refused_by_all_and_stops_no_party(office, shared_file, why):
    offer = office.propose().offer
    evil = msgspec.structs.replace(offer, shared_file=shared_file, proposer=SHOP)
    office.homes[SHOP].say(Proposed(evil))
    office.settle()
    state = office.jobs(BANK).named(evil.job)
    assert any(why in because for because in state.refusals.values())
    assert set(office.settle().values()) == {None}


def test_a_policy_signs_what_it_allows_and_all_else_waits_for_a_person(office):
    office.files.write_policy(SHOP)
    office.files.write_policy(BUREAU, rounds=3)
    for hub in (SHOP, BUREAU):
        office.open_again(hub)
    state = office.propose()
    office.settle()
    jobs = office.jobs(BANK)
    assert jobs.in_words(jobs.named(state.name), office.clock) == f"{BUREAU} has not approved"
    assert statements(office.homes[BANK].log, SHOP) == [Approved(state.name, state.offer.expires, "policy")]
    assert office.homes[BUREAU].verdict(
        office.jobs(BUREAU), office.jobs(BUREAU).named(state.name), int(office.clock)
    ) == ["rounds = 3: the job has 4"]
    tested = tdcd("policy", "test", state.name[:6], "--party", office.files.own(BUREAU), cwd=office.files.folder)
    assert (tested.exit_code, tested.stdout) == (1, "waits for a person: rounds = 3: the job has 4\n")
    # Its second job on this day is beyond its quota.
    second = office.propose()
    office.settle()
    reasons = office.homes[SHOP].verdict(office.jobs(SHOP), office.jobs(SHOP).named(second.name), int(office.clock))
    assert reasons == ["jobs_per_day = 1: it has approved 1 already"]


def test_the_log_is_checked_from_files_alone(office):
    state = office.propose()
    office.settle()
    office.homes[SHOP].approve(office.jobs().named(state.name))
    office.settle()
    folder = office.files.folder / "client.bureau.east" / "standing"
    done = tdcd("verify", folder, "--log", cwd=office.files.folder)
    assert done.exit_code == 0, done.output
    assert "All entries are signed and in order: 2 approved, 1 proposed." in done.stdout
    path = folder / "log" / f"{BANK}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    offer = json.loads(lines[0])["entry"]["statement"]["offer"]["nonce"].encode()
    for changed, why in (
        ([lines[0].replace(offer, b"0" * 32), lines[1]], "line 1: entry 0 of hub.bank is not signed"),
        (lines[1:], "line 1: it is not entry 0"),
        ([lines[0], lines[0]], "line 2: it is not entry 1"),
        ([b"{}\n"], "line 1: it is not what parties that stand by send"),
        ([lines[0].replace(b",", b", ", 1)], "line 1: it is not written as the protocol writes it"),
    ):
        path.write_bytes(b"".join(changed))
        done = tdcd("verify", folder, "--log", cwd=office.files.folder)
        assert (done.exit_code, why in " ".join(done.stderr.split())) == (2, True), done.stderr
    # What a crash leaves of a line is no entry, and the next one takes its place.
    path.write_bytes(lines[0] + lines[1][:40])
    log = open_log_of(folder)
    assert log.counts[BANK] == 1
    assert log.accept(read_line(lines[1][:-1]))
    assert path.read_bytes() == b"".join(lines)


CLIENT = "client.bureau.east"


def test_a_shared_file_without_those_who_leave_does_not_touch_the_former_log(tmp_path, monkeypatch):
    monkeypatch.setattr("tdcd.standing.service.TICK_S", 0.0)
    files = StandingFederation(tmp_path / "it")
    office = Office(files)
    office.propose()
    office.settle()
    before = files.shared.read_bytes()
    fewer = toml_text(files.keys | {"silos": files.sections({"bank": ["north", "south"]})})
    (files.folder / BANK / "federation.toml").write_text(fewer)
    # The service still runs, and is then started with the former folder.
    office.settle()
    with pytest.raises(ValueError, match=r"entry 0 of hub\.bank was signed for another federation"):
        files.home(BANK)
    folder = office.homes[BANK].folder
    assert (folder / "federation.toml").read_bytes() == before
    done = tdcd("verify", folder, "--log", cwd=files.folder)
    assert done.exit_code == 0, done.output
    files.write_own(BANK, folder="standing-2")
    assert files.home(BANK).log.counts == dict.fromkeys([BANK, "client.bank.north", "client.bank.south"], 0)


def test_a_chain_that_was_accepted_can_be_read_again_also_at_its_largest(office, monkeypatch):
    bank, shop = office.homes[BANK], office.homes[SHOP]
    for _ in range(4):
        bank.say(Rejected(SHOP, "x" * 900))
    chain = bank.log.chains[BANK]
    monkeypatch.setattr("tdcd.standing.log.MOST_BYTES", len(written(chain[0])) + 100)
    with pytest.raises(RejectedMessage, match=r"entry 2 of hub\.bank is one too many"):
        shop.log.accept(*chain)
    assert shop.log.counts[BANK] == open_log_of(shop.folder).counts[BANK] == 2


def test_what_the_disk_does_not_take_was_not_said(office):
    bank, shop = office.homes[BANK], office.homes[SHOP]
    for word in ("a", "b"):
        bank.say(Rejected(SHOP, word))
    file = shop.folder / "log" / f"{BANK}.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"Invalid argument|No space left"):
        shop.log.accept(*bank.log.chains[BANK])
    file.unlink()
    assert shop.log.counts[BANK] == 0
    assert shop.log.accept(*bank.log.chains[BANK])
    assert open_log_of(shop.folder).counts[BANK] == 2


def approved_by_all(office, **changes):
    """A job that both other hubs' persons approve."""
    state = office.propose(**changes)
    office.settle()
    for hub in (SHOP, BUREAU):
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    return state


def run_through(office, state):
    """All parties' part of every step, without what it computes."""
    for step in state.offer.steps:
        assert {*office.settle().values()} == {Called(state.name, step, 1)}
        for home in office.homes.values():
            home.say(StepEnded(state.name, step, 1, "finished"))
    office.settle()
    return state


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"columns": ["id", "score", "loans"]}, "columns: 'bought' is not among them"),
        ({"purposes": []}, "purposes: 'test' is not among them"),
        ({"rounds": 4}, None),
    ],
)
def test_a_client_refuses_what_its_policy_does_not_allow_and_then_no_step_runs(office, rules, why):
    office.files.write_policy(CLIENT, **rules)
    office.open_again(CLIENT)
    state = office.propose()
    for hub in (SHOP, BUREAU):
        office.homes[hub].log.accept(office.homes[BANK].log.chains[BANK][0])
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    calls = office.settle()
    home = office.homes[CLIENT]
    named = home.jobs().named(state.name)
    tested = tdcd("policy", "test", state.name[:6], "--party", office.files.own(CLIENT), cwd=office.files.folder)
    if why is None:
        assert set(calls.values()) == {Called(state.name, "align", 1)}
        assert tested.stdout == "the policy does not refuse it\n"
        return
    assert set(calls.values()) == {None}
    assert named.refusals == {CLIENT: why}
    assert not any(party == CLIENT for party, _ in named.started)
    assert (tested.exit_code, tested.stdout) == (1, f"is refused: {why}\n")


@pytest.mark.parametrize(("rules", "late_s"), [({"purposes": []}, 1), ({"purposes": []}, 86_400), ({}, 86_400)])
def test_a_client_that_was_down_until_a_job_expired_refuses_it(office, rules, late_s):
    """A job that it neither begins nor refuses would hold up all others."""
    office.files.write_policy(CLIENT, **rules)
    office.open_again(CLIENT)
    down = office.desks.pop(CLIENT)
    state = approved_by_all(office)
    office.settle()
    assert office.jobs(BANK).named(state.name).call
    office.desks[CLIENT] = down
    office.clock = state.offer.expires + late_s
    office.settle()
    why = "purposes: 'test' is not among them" if rules else f"it had to begin by {when(state.offer.expires)}"
    assert office.jobs(BANK).named(state.name).refusals[CLIENT].startswith(why)
    said = [said for said in statements(office.homes[CLIENT].log, CLIENT) if isinstance(said, Refused)]
    assert len(said) == 1


def test_a_clients_policy_that_cannot_be_read_refuses_nothing_and_lets_nothing_begin(office):
    office.files.write_policy(CLIENT, jobs_per_day=3)
    office.open_again(CLIENT)
    with pytest.raises(ConfigError, match="jobs_per_day = 3: hubs alone approve, so leave it out here"):
        assert office.homes[CLIENT].policy
    state = approved_by_all(office)
    office.settle()
    jobs = office.jobs(BANK)
    assert (CLIENT, Called(state.name, "align", 1)) not in jobs.named(state.name).started
    assert not jobs.named(state.name).refusals
    office.files.write_policy(CLIENT)
    assert set(office.settle().values()) == {Called(state.name, "align", 1)}


def test_a_proposal_without_the_right_is_logged_as_refused_once(office):
    state = office.propose()
    client = office.homes["client.shop.main"]
    client.say(Proposed(msgspec.structs.replace(state.offer, proposer="client.shop.main")))
    office.homes[SHOP].say(Proposed(state.offer))
    twice = msgspec.structs.replace(state.offer, proposer=SHOP, steps=("train", "align"))
    office.homes[SHOP].say(Proposed(twice))
    for _ in range(2):
        office.settle()
    rejected = [said for said in statements(office.homes[BANK].log, BUREAU) if isinstance(said, Rejected)]
    assert {(said.sender, said.because.partition(": ")[2]) for said in rejected} == {
        ("client.shop.main", "only hubs propose jobs"),
        (SHOP, f"it is in the name of {BANK}"),
        (SHOP, "a job has no such steps: train, align"),
    }
    assert len(rejected) == 3
    assert len(office.jobs(BANK).states) == 1


def test_an_audit_is_a_job_that_policies_know_and_that_says_who_is_shown_what(office):
    # No phi leaves a client: what a policy asks of its protection does not matter.
    office.files.write_policy(SHOP, kinds=["audit"], protect="mask", protect_blocks=True, silos=9)
    office.files.write_policy("client.shop.main", kinds=["train"])
    office.open_again(SHOP)
    state = office.propose(steps=("audit",))
    office.settle()
    known = office.jobs(BUREAU)
    assert SHOP in known.named(state.name).approvals
    lines = dict(describe(known.named(state.name)))
    assert lines["who gets the report"] == f"{BANK}; every client the page about its own rows"
    assert lines["leaves a hub"] == f"the same of the client that fared worst, to {BANK}"
    office.homes[BUREAU].approve(known.named(state.name))
    run_through(office, state)
    office.open_again("client.shop.main")
    refused = office.propose(steps=("audit",))
    office.settle()
    assert office.jobs(BANK).named(refused.name).refusals == {"client.shop.main": "kinds: 'audit' is not among them"}
    with pytest.raises(ConfigError, match="is about a former one, and no other is"):
        office.homes[BANK].propose_about(office.jobs(BANK).named(state.name), "audit", "test", "", 1.0)


def test_a_training_starts_from_a_former_job_that_has_finished(office, tmp_path):
    def asked(start):
        keys, file = office.files.keys, tmp_path / "next.toml"
        file.write_text(toml_text(keys | {"train": keys["train"] | {"start": start}}))
        return office.propose(path=file)

    former, home = approved_by_all(office), office.homes[BANK]
    for start, why in (
        ("runs/march", r"train\.start = 'runs/march': in a job it is the whole name of a former job"),
        ("0" * 64, "there is no training 000000000000"),
        (former.name, "has not finished"),
    ):
        with pytest.raises(ConfigError, match=why):
            asked(start)
    run_through(office, former)
    state = asked(former.name)
    office.settle()
    known = office.jobs(SHOP)
    lines = dict(describe(known.named(state.name)))
    assert lines["starts from"] == f"the model of job {former.name}; silos that were not in it begin anew"
    part = JobPart(home, home.jobs().named(state.name), state.job, home.jobs().started_from(state.offer))
    assert part._own.start == str(home.job_folder(former) / "run")
    client = office.homes["client.shop.main"]
    assert JobPart(client, known.named(state.name), state.job, former)._own.start is None
    deletion = home.propose_about(former, "delete", "test", "", 1.0)
    office.settle()
    for hub in (SHOP, BUREAU):
        office.homes[hub].approve(office.jobs(hub).named(deletion.name))
    run_through(office, deletion)
    with pytest.raises(ConfigError, match=f"was deleted by job {deletion.name[:12]}"):
        asked(former.name)


def test_an_alignment_takes_what_a_former_job_has_found(office, tmp_path):
    former = approved_by_all(office)
    with pytest.raises(ConfigError, match="has not finished"):
        office.propose(known=former)
    run_through(office, former)
    state = office.propose(known=former)
    lines = dict(describe(state))
    assert lines["known ids"] == f"those of job {former.name}, not compared again"
    with pytest.raises(ConfigError, match="no other is that aligns nothing"):
        office.propose(steps=("train",), known=former)
    file, keys = tmp_path / "all.toml", office.files.keys
    file.write_text(toml_text(keys | {"data": keys["data"] | {"samples": "all"}}))
    with pytest.raises(ConfigError, match=r"say nothing here: its silos, data\.ids or data\.samples are others"):
        office.propose(path=file, known=former)


def test_predicting_and_deleting_are_jobs_about_a_former_one(office):
    office.files.write_policy(SHOP, kinds=["predict"], predictions=["bank"])
    office.open_again(SHOP)
    home = office.homes[BANK]
    former = approved_by_all(office)
    for step in ("predict", "delete"):
        with pytest.raises(ConfigError, match=r"has not finished|is not over"):
            home.propose_about(former, step, "test", "", 1.0, ["bank"] if step == "predict" else [])
    run_through(office, former)
    former = home.jobs().named(former.name)
    for to, why in (([], "does not say who gets the predictions"), (["lab"], "hub.lab cannot get predictions")):
        with pytest.raises(ConfigError, match=why):
            home.propose_about(former, "predict", "test", "", 1.0, to)
    asked = {to: home.propose_about(former, "predict", "test", "", 1.0, [to]) for to in ("bank", "bureau")}
    office.settle()
    approvals = {to: office.jobs(SHOP).named(state.name).approvals for to, state in asked.items()}
    assert {to: SHOP in by for to, by in approvals.items()} == {"bank": True, "bureau": False}
    lines = dict(describe(office.jobs(SHOP).named(asked["bank"].name)))
    assert lines["who gets predictions"] == BANK
    assert lines["leaves a client"] == "ids and phi of its new rows, to its hub"
    office.homes[BUREAU].approve(office.jobs(BUREAU).named(asked["bank"].name))
    run_through(office, asked["bank"])
    deletion = home.propose_about(former, "delete", "test", "", 1.0)
    office.settle()
    assert office.homes[SHOP].verdict(office.jobs(SHOP), office.jobs(SHOP).named(deletion.name), int(office.clock)) == [
        "kinds: 'delete' is not among them",
        "jobs_per_day = 1: it has approved 1 already",
    ]
    for hub in (SHOP, BUREAU):
        office.homes[hub].approve(office.jobs(hub).named(deletion.name))
    run_through(office, deletion)
    jobs = home.jobs()
    assert jobs.in_words(jobs.named(former.name), office.clock) == f"finished; deleted by job {deletion.name[:12]}"
    with pytest.raises(ConfigError, match=f"was deleted by job {deletion.name[:12]}"):
        home.propose_about(former, "predict", "test", "", 1.0, ["bank"])
    assert "was deleted by" in jobs.in_words(jobs.named(asked["bureau"].name), office.clock)
    done = tdcd("verify", office.files.folder / CLIENT / "standing", "--log", cwd=office.files.folder)
    about = f"about job {former.name[:12]}"
    for words in (
        f"job {asked['bank'].name[:12]}: predict {about}, predictions for {BANK}, proposed by {BANK}; approved by "
        f"{BANK}, {BUREAU}, {SHOP}; predict, attempt 1: 7 finished; finished",
        f"job {deletion.name[:12]}: delete {about}, proposed by {BANK}; approved by {BANK}, {BUREAU}, {SHOP}; "
        "delete, attempt 1: 7 finished; finished",
    ):
        assert words in done.stdout


def test_a_prediction_with_a_model_of_noisy_phi_is_neither_proposed_nor_approved(office):
    path = office.files.folder / "job.toml"
    path.write_text(toml_text(office.files.keys | {"exchange": {"epsilon": 3.0}}))
    former = run_through(office, approved_by_all(office, path=path))
    why = "exchange.epsilon = 3: training sends phi with noise, and predictions without it"
    with pytest.raises(ConfigError, match=why):
        office.homes[BANK].propose_about(office.jobs(BANK).named(former.name), "predict", "test", "", 1.0, ["bank"])
    evil = msgspec.structs.replace(former.offer, steps=("predict",), of=former.name, to=(BANK,))
    office.homes[BANK].say(Proposed(evil))
    office.settle()
    assert any(why in because for because in office.jobs(BANK).named(evil.job).refusals.values())


def test_a_client_without_new_rows_refuses_to_predict(office):
    former = run_through(office, approved_by_all(office))
    home, own = office.homes[BANK], office.files.own(CLIENT)
    own.write_text(own.read_text().replace('new = "new.csv"\n', ""))
    office.open_again(CLIENT)
    state = home.propose_about(home.jobs().named(former.name), "predict", "test", "", 1.0, ["bank"])
    office.settle()
    assert office.jobs(BANK).named(state.name).refusals[CLIENT] == "new: its party.toml names no new rows to predict"


@pytest.mark.parametrize(
    ("change", "steps", "why"),
    [
        ({"data": {"samples": "all"}}, ("train",), "only an alignment finds the list of samples; do not leave it out"),
        ({"link": {"key": "home", "link": "/etc/passwd"}}, ("align", "train"), "link = '/etc/passwd': must be a file"),
        ({"link": {"key": "home", "link": "h.csv"}, "data": {"folder": "x"}}, ("train",), "leave out data.folder"),
    ],
)
def test_a_job_that_cannot_run_or_reads_elsewhere_is_refused_when_it_is_proposed(office, change, steps, why):
    keys = office.files.keys | {"data": office.files.keys["data"] | change.get("data", {})}
    first, *others = keys["silos"]
    path = office.files.folder / "job.toml"
    path.write_text(toml_text(keys | {"silos": [first | change.get("link", {}), *others]}))
    with pytest.raises(ConfigError, match=why):
        office.homes[BANK].propose(path, steps, "test", "", 1.0)


def test_a_link_table_is_looked_for_next_to_the_data_and_not_where_it_leads_out(office, tmp_path):
    keys, client = office.files.keys, "client.shop.main"
    silos = [silo | ({"key": "home", "link": "homes.csv"} if silo["name"] == "shop" else {}) for silo in keys["silos"]]
    path = office.files.folder / "job.toml"
    path.write_text(toml_text(keys | {"silos": silos}))
    state = office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)
    office.settle()
    home = office.homes[client]
    folder = office.files.folder / client
    assert home.job_of(state).config.data.folder == str(folder)
    (folder / "homes.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(ConfigError, match=r"link = 'homes\.csv': leads out of"):
        home.job_of(state)
    (folder / "homes.csv").unlink()


def test_a_file_in_a_jobs_folder_that_is_not_the_one_approved_is_refused(office):
    home, state = office.homes[BANK], office.propose()
    assert home.job_of(state).config.train.rounds == office.files.keys["train"]["rounds"]
    file = home.job_folder(state) / "federation.toml"
    # 128 bits: two jobs that share a folder are not found by trying.
    assert file.parent.name == state.name[:32]
    file.write_text(file.read_text().replace("rounds = 4", "rounds = 5"))
    with pytest.raises(ConfigError, match="it is not the file that all have approved; remove it"):
        home.job_of(state)
    file.unlink()
    assert home.job_of(state).config.train.rounds == 4


def test_what_a_person_decides_by_names_all_that_is_read_and_sent(office):
    keys = office.files.keys
    silos = [silo | ({"key": "home", "link": "homes.csv"} if silo["name"] == "shop" else {}) for silo in keys["silos"]]
    del silos[2]["label"]
    job = keys | {"silos": silos, "data": keys["data"] | {"rare": 3}}
    path = office.files.folder / "job.toml"
    path.write_text(toml_text(job))
    state = office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)
    shown = describe(state)
    assert [words for heading, words in shown if heading == "columns"] == [
        "bank: features age, income; id id; label bought",
        "shop: features debt, visits; id id; label bought; key home, in the link table homes.csv",
        "bureau: features score, loans; id id; label bought",
    ]
    lines = dict(shown)
    assert lines["levels"] == "of categories with fewer than 3 rows in a silo become 'other'"
    assert lines["leaves a hub"] == "phi; blinded ids, to find those that all have"
    federation = {"labels": "bank"}
    for silo in job["silos"]:
        silo.pop("label", None)
    job["silos"][0]["label"] = "bought"
    for change, labels, hub in (
        ({}, "slopes are sent as they are, which reveals the labels", "slopes of the labels"),
        (
            {"label_epsilon": 1.0, "label_classes": ["no", "yes"]},
            "reveals labels randomised with epsilon 1",
            "epsilon 1",
        ),
        ({"protect_labels": "encrypt"}, "its slopes are sent encrypted", "encrypted slopes"),
    ):
        steps = {"train": keys["train"] | {"local_steps": 1}}
        path.write_text(toml_text(job | steps | {"federation": federation | change}))
        state = office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)
        lines = dict(describe(state))
        assert labels in lines["labels"]
        assert hub in lines["leaves a hub"]
        assert f"federation.protect_labels = '{change.get('protect_labels', 'none')}'" in lines["protection"]


def test_texts_of_the_proposer_are_one_line_each(office):
    keys = office.files.keys
    first, *others = keys["silos"]
    path = office.files.folder / "job.toml"
    features = ["age", "b\nlabels:  none", *(f"a_column_of_many_{number}" for number in range(100))]
    path.write_text(toml_text(keys | {"silos": [first | {"features": features}, *others]}))
    words = {"purpose": "test\nstate: approved\x1b[2K", "contact": "me\r\nrounds: 1\u2028x"}
    state = office.propose(path=path, **words)
    lines = describe(state)
    assert all(said.isprintable() for _, said in lines)
    assert dict(lines)["purpose"] == "test state: approved\\x1b[2K"
    # Nothing is cut off.
    columns = next(said for heading, said in lines if heading == "columns")
    assert columns.endswith("b labels: none, " + ", ".join(features[2:]) + "; id id; label bought")
    listed = tdcd("jobs", "--party", office.files.own(BANK), cwd=office.files.folder).stdout
    assert "test state:" in listed


def test_epsilon_is_asked_and_left(office):
    silos = [{name: value for name, value in silo.items() if name != "label"} for silo in office.files.keys["silos"]]
    silos[0]["label"] = "bought"
    path = office.files.folder / "job.toml"
    office.files.write_policy(BANK, epsilon_per_month=3.0, jobs_per_day=9, label_epsilon=2.0)
    office.open_again(BANK)
    for epsilon, words in (
        (2.0, "asks for 2; 0 spent in 30 days, 3 of 3 left"),
        (2.0, "asks for nothing more, the same labels were drawn before; 2 spent in 30 days, 1 of 3 left"),
        (0.5, "asks for 0.5; 2 spent in 30 days, 1 of 3 left"),
        (2.0, "asks for nothing more, the same labels were drawn before; 2.5 spent in 30 days, 0.5 of 3 left"),
    ):
        federation = {"labels": "bank", "label_epsilon": epsilon, "label_classes": ["no", "yes"]}
        path.write_text(toml_text(office.files.keys | {"silos": silos, "federation": federation}))
        name = office.homes[SHOP].propose(path, ("align", "train"), "test", "", 1.0).name
        office.homes[BANK].log.accept(office.homes[SHOP].log.chains[SHOP][-2])
        office.homes[BANK].log.accept(office.homes[SHOP].log.chains[SHOP][-1])
        shown = tdcd("show", name, "--party", office.files.own(BANK), cwd=office.files.folder)
        assert f"epsilon:            {words}" in shown.stdout, shown.stdout + shown.stderr
        office.homes[BANK].approve(office.jobs(BANK).named(name))
    left = office.homes[BANK].epsilon_left(office.jobs(BANK), int(office.clock))
    assert left == {"epsilon_per_month": (0.5, 3.0)}
    federation["label_epsilon"] = 1.0
    path.write_text(toml_text(office.files.keys | {"silos": silos, "federation": federation}))
    state = office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)
    reasons = office.homes[BANK].verdict(office.jobs(BANK), state, int(office.clock))
    assert reasons == ["epsilon_per_month = 3: 2.5 of it is spent, and the job asks for 1"]


STEP = """
import sys
from functools import partial
from pathlib import Path
from tdcd.standing.children import StepServer
from tdcd.standing.home import Home
from tdcd.standing.step import main
home = Home(Path(sys.argv[1]))
steps = StepServer(partial(main, home), home.jobs)
sys.exit(steps.start([sys.argv[2], "train", "10"], Path(sys.argv[3])).wait() % 256)
"""
"""A step of a job, as a service starts it."""
CORES = """
import os
import numpy
from threadpoolctl import threadpool_info
from tdcd.standing.children import limit_cores
limit_cores(1, "hub.shop")
print(len(os.sched_getaffinity(0)), *{pool["num_threads"] for pool in threadpool_info()})
"""


ENDED = """
import os, signal, sys
from pathlib import Path
from tdcd.standing.children import StepServer
steps = StepServer(lambda *words: 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
for _ in range(2):
    try:
        steps.start(["step"], Path(sys.argv[1]))
    except RuntimeError as error:
        print(error)
"""


def test_a_service_without_the_process_that_steps_are_copies_of_ends_as_by_a_crash(tmp_path):
    # Not by bad input, after which nothing starts it again.
    done = subprocess.run([sys.executable, "-c", ENDED, tmp_path / "log"], check=True, capture_output=True, text=True)
    why = "the process that steps are copies of has ended: start the service again, the job continues"
    assert done.stdout.splitlines() == [why] * 2


def test_a_step_gets_the_memory_and_the_cores_that_the_party_gives(office, tmp_path):
    shown = subprocess.run([sys.executable, "-c", CORES], check=True, capture_output=True, text=True).stdout
    assert shown == "1 1\n"
    state = office.propose()
    for hub in (SHOP, BUREAU):
        office.settle()
        office.homes[hub].approve(office.jobs(hub).named(state.name))
    assert set(office.settle().values()) == {Called(state.name, "align", 1)}
    office.files.write_own(SHOP, memory=0.15)
    words = [sys.executable, "-c", STEP, office.files.own(SHOP), state.name, tmp_path / "log"]
    status = subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode
    assert status in (REFUSED, -signal.SIGABRT % 256), (tmp_path / "log").read_text()
    if status == REFUSED:
        refusals = {SHOP: "memory = 0.15: its part of the step 'train' takes more GB than that"}
        assert office.jobs(SHOP).states[state.name].refusals == refusals


@pytest.mark.parametrize(
    ("status", "awaited", "due"),
    [(None, {}, True), ("finished", {"hub.shop": 3.0}, True), ("finished", {"hub.shop": 3.0, "hub.lab": 3.0}, False)],
)
def test_a_hub_makes_way_and_when_its_run_is_over_if_all_stand_by_that_it_waits_for(tmp_path, status, awaited, due):
    words = "is standing by since 2026-11-19 18:44 UTC; hub.bank is training, and has no link with that process"
    unfit = {party: f"{party} {words}" for party in ("client.bank.north", "hub.shop")}
    (tmp_path / "status.json").write_text(json.dumps({"status": status, "missing_s": awaited, "unfit": unfit}))
    assert MakingWay(-1.0).is_due_by(tmp_path / "status.json") == due


def test_a_part_that_is_done_is_over_when_all_have_ended_and_one_that_is_not_is_lost_when_one_has():
    call = Called("0" * 64, "train", 1)
    for ended, lost, finished in (([False, False], False, False), ([True, False], True, False), ([True], True, True)):
        assert (MadeWay(call).is_over(ended), MadeWay(call, "finished").is_over(ended)) == (lost, finished)


def test_a_hub_that_was_killed_when_all_had_ended_says_how_its_run_ended(office):
    state = approved_by_all(office)
    assert set(office.settle().values()) == {Called(state.name, "align", 1)}
    ended = StepEnded(state.name, "align", 1, "finished")
    for home in office.homes.values():
        if home.party != SHOP:
            home.say(ended)
    office.settle()
    desk = office.desks[SHOP]
    desk.decided_at = -math.inf
    assert desk.step(MadeWay(Called(state.name, "align", 1), "finished")) is None
    assert statements(office.homes[SHOP].log, SHOP)[-1] == ended


def test_limits_that_limit_nothing_are_refused(files):
    files.reset()
    files.write_own(BANK, memory=1e6, cores=10_000)
    with pytest.raises(ConfigError) as refused:
        files.home(BANK)
    memory, cores = refused.value.problems
    assert re.fullmatch(r"memory = 1e\+06: this machine has [\d.]+ GB", memory)
    assert re.fullmatch(r"cores = 10000: this process may use \d+", cores)


def test_a_message_that_is_none_is_refused():
    for data in (
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"type":"have","counts":{"hub.a":-1}}',
        b'{"type":"have","counts":{"x":1}}',
    ):
        with pytest.raises(RejectedMessage):
            read_message(data)


def test_a_file_without_tls_or_of_no_party_is_refused(tmp_path, files):
    for text, why in (
        ('silo = "bank"\ninsecure = true', "insecure = true: a party that stands by signs"),
        ('silo = "lab"', "hub.lab is no party of"),
        ('silo = "bank"\nclient = "north"', "data: is missing; a client needs its rows"),
        ('silo = "bank"\nnew = "new.csv"', "clients score new rows, not their hub"),
        ('silo = "bank"\nserve = "0.0.0.0:8400"', "serve = 0.0.0.0:8400: give a port of this machine's own address"),
        (f'silo = "bank"\nserve = "/{"x" * 108}"', "the path of a socket has at most 107 letters"),
        ('silo = "bank"\nclient = "north"\ndata = "d"\nserve = "8400"', "serve = '8400': its hub has the model"),
    ):
        own = tmp_path / "party.toml"
        own.write_text(text + f'\nfederation = "{files.shared}"')
        with pytest.raises(ConfigError, match=why):
            Home(own)
