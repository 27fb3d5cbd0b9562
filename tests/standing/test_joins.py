"""Members that join a federation that stands by: its log continues, and all who were there have approved it."""

import random

import pytest

from support.command import tdcd
from support.standing import COLUMNS, Office, StandingFederation, parties_in
from tdcd.config import ConfigError
from tdcd.records.run_folder import toml_text
from tdcd.standing.home import open_log_of
from tdcd.standing.jobs import Jobs, parties_of
from tdcd.standing.log import SKEW_S, Log
from tdcd.standing.policy import Policy, judge_content
from tdcd.standing.statements import Approved, Called, Closed, Offer, Proposed

COMPANIES = {"bank": ["north"], "shop": ["main"], "bureau": ["east"]}
WITH_CLIENT = COMPANIES | {"bank": ["north", "south"]}
WITH_BOTH = WITH_CLIENT | {"insurer": ["west"]}
BANK, SHOP, BUREAU, INSURER = "hub.bank", "hub.shop", "hub.bureau", "hub.insurer"
SOUTH, WEST = "client.bank.south", "client.insurer.west"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    later = [("bank", ["south"]), ("insurer", ["west"]), ("lender", ["one"])]
    columns = COLUMNS | {"lender": ["rate", "term"]}
    return StandingFederation(tmp_path_factory.mktemp("federation") / "it", COMPANIES, later, columns=columns)


@pytest.fixture
def office(files, monkeypatch):
    monkeypatch.setattr("tdcd.standing.service.TICK_S", 0.0)
    files.reset()
    return Office(files)


def approve(office, name, *hubs):
    """What follows when these have approved; by party the call that it follows."""
    for hub in hubs:
        office.settle()
        office.homes[hub].approve(office.jobs(hub).named(name))
    return office.settle()


def join(office, path, proposer=BANK, *newcomers):
    """All who are there approve it."""
    name = office.homes[proposer].propose(path, ("join",), "test", "", 1.0).name
    office.settle()
    for party in newcomers:
        office.arrive(party)
    approve(office, name, *({BANK, SHOP, BUREAU} - {proposer}))
    return name


def members(office):
    return {frozenset(parties_of(home.jobs().standing)) for home in office.homes.values()}


def test_a_client_joins_and_then_a_fourth_company_and_the_log_continues(office, files):
    first = join(office, files.enlarged(WITH_CLIENT), BANK, SOUTH)
    assert members(office) == {frozenset(parties_in(WITH_CLIENT))}
    enlarged = files.enlarged(WITH_BOTH)
    second = join(office, enlarged, SHOP, INSURER, WEST)
    # The fourth company sees all that was ever said before it agrees, and until then it is no member.
    assert office.jobs(INSURER).states[first].closed == "finished"
    shown = tdcd("show", second, "--party", files.own(INSURER), cwd=files.folder).stdout
    address = files.hubs[INSURER]
    assert f"joins:              silo insurer: hub.insurer at {address}, clients west\nwho gets" in shown
    assert "not approved by:    hub.insurer" in shown
    assert office.jobs(WEST).states[second].closed is None
    ahead = office.homes[BANK].propose  # A job of members that are still to join.
    with pytest.raises(ConfigError, match=f"job {second[:12]}, by which its members join, has not finished"):
        ahead(enlarged, ("align", "train"), "test", "", 1.0)
    approve(office, second, INSURER)
    assert members(office) == {frozenset(parties_in(WITH_BOTH))}
    # Whoever has the files can check it, and what a new company proposes all can approve.
    name = office.homes[INSURER].propose(enlarged, ("align", "train"), "test", "", 1.0).name
    calls = approve(office, name, BANK, SHOP, BUREAU)
    assert calls == dict.fromkeys(parties_in(WITH_BOTH), Called(name, "align", 1))
    for party in (SOUTH, WEST):
        log = open_log_of(office.homes[party].folder)
        assert Jobs.of(files.home(BANK).founding, log).states[name].calls == [Called(name, "align", 1)]
        assert log.counts == office.homes[BANK].log.counts
    checked = tdcd("verify", office.homes[WEST].folder, "--log", cwd=files.folder)
    assert checked.exit_code == 0, checked.output
    assert f"job {first[:12]}: join of {SOUTH}, proposed by hub.bank; approved by {BANK}, {BUREAU}" in checked.stdout
    assert f"job {second[:12]}: join of {INSURER}, {WEST}, proposed by hub.shop;" in checked.stdout
    office.homes[WEST].refuse(office.jobs(WEST).named(name), "enough")
    # Former members run jobs without the new ones, who have no part in them and no say.
    former = office.homes[BANK].propose(files.shared, ("train",), "test", "", 1.0).name
    called = approve(office, former, SHOP, BUREAU)
    assert called == dict.fromkeys(parties_in(COMPANIES), Called(former, "train", 1)) | dict.fromkeys(
        [SOUTH, INSURER, WEST]
    )
    office.homes[WEST].refuse(office.jobs(WEST).named(former), "no")
    assert office.settle() == called
    # A policy of theirs is not asked, and they cannot speak for others.
    files.write_policy(INSURER, epsilon_per_month=1.0)
    office.open_again(INSURER)
    waiting = office.homes[BANK].propose(files.shared, ("train",), "test", "", 1.0)
    assert office.settle() == called
    shown = tdcd("show", waiting.name, "--party", files.own(INSURER), cwd=files.folder)
    assert "your part:          none" in shown.stdout
    with pytest.raises(ValueError, match=r"hub\.insurer cannot approve: it has no part in job"):
        office.homes[INSURER].approve(office.jobs(INSURER).named(waiting.name))
    with pytest.raises(ConfigError, match=r"hub\.insurer has no part in it"):
        office.homes[INSURER].propose(files.shared, ("train",), "test", "", 1.0)


def test_no_party_is_let_in_before_all_who_are_there_have_approved(office, files):
    path = files.enlarged(WITH_BOTH)
    office.homes[BANK].propose(path, ("join",), "test", "", 1.0)
    state = office.jobs(BANK).states.popitem()[1]
    office.settle()
    files.write_policy(INSURER, epsilon_per_month=1.0)
    office.arrive(INSURER)
    approve(office, state.name, SHOP)
    assert INSURER not in office.homes[BANK].partners
    assert office.homes[INSURER].log.counts == dict.fromkeys(parties_in(COMPANIES), 0)
    with pytest.raises(ValueError, match=r"hub\.insurer is new here: .* have not all let it join yet"):
        office.homes[INSURER].propose(files.shared, ("align", "train"), "test", "", 1.0)
    # A client can refuse, too, and then nobody joins.
    office.homes["client.shop.main"].refuse(office.jobs("client.shop.main").named(state.name), "no")
    office.settle()
    with pytest.raises(ValueError, match="is over"):
        office.homes[BUREAU].approve(office.jobs(BUREAU).named(state.name))
    assert members(office) == {frozenset(parties_in(COMPANIES))}


def test_of_two_files_the_one_that_was_approved_first_counts(office, files):
    other = office.homes[SHOP].propose(files.enlarged(WITH_CLIENT, "other.toml"), ("join",), "test", "", 1.0).name
    join(office, files.enlarged(WITH_BOTH), BANK, SOUTH, INSURER, WEST)
    assert members(office) == {frozenset(parties_in(COMPANIES))}
    approve(office, next(name for name in office.jobs(INSURER).states if name != other), INSURER)
    assert members(office) == {frozenset(parties_in(WITH_BOTH))}
    words = "the members have changed since it was proposed"
    assert words in office.jobs(BANK).states[other].refusals[BANK]


def test_newcomers_of_two_files_have_links_at_the_same_time(office, files):
    # The company of the first file never answers.
    slow, other = files.enlarged(COMPANIES | {"lender": ["one"]}, "slow.toml"), COMPANIES | {"insurer": ["west"]}
    first = join(office, slow)
    path = files.enlarged(other)
    second = office.homes[SHOP].propose(path, ("join",), "test", "", 1.0).name
    approve(office, second, BANK, BUREAU)
    for party in (INSURER, WEST):
        office.arrive(party)
    approve(office, second, INSURER)
    assert members(office) == {frozenset(parties_in(other))}
    # The first one was about other members.
    words = office.jobs(BANK).in_words(office.jobs(BANK).states[first], office.clock)
    assert words.startswith("the members have changed since it was proposed")
    assert "hub.lender" not in office.homes[BANK].partners


@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_are_read_on_are_those_that_are_read_anew_in_whatever_order_entries_come(
    office, files, tmp_path, seed
):
    early = office.homes[SHOP].propose(files.shared, ("align", "train"), "test", "", 1.0).name
    join(office, files.enlarged(WITH_CLIENT), BANK, SOUTH)
    office.homes[SOUTH].refuse(office.jobs(SOUTH).named(early), "not with me")
    later = office.homes[BANK].propose(files.folder / "enlarged.toml", ("align", "train"), "test", "", 1.0).name
    approve(office, later, SHOP, BUREAU)
    log, founding = office.homes[BANK].log, files.home(BANK).founding
    other = Log(tmp_path, log.federation, parties_of(founding), log.authority)
    chains, rng, jobs = {party: [*chain] for party, chain in log.chains.items()}, random.Random(seed), None
    while chains := {party: chain for party, chain in chains.items() if chain}:
        party = rng.choice([party for party in chains if party in other.chains])
        other.accept(chains[party].pop(0))
        jobs = Jobs.of(founding, other) if jobs is None else jobs.read_on()
        anew = Jobs.of(founding, other)
        assert (jobs.states, jobs.unentitled) == (anew.states, anew.unentitled)
        assert ([*jobs.states], [*jobs.members]) == ([*anew.states], [*anew.members])
    assert jobs.states[later].calls == [Called(later, "align", 1)]
    assert len(jobs.members) == 2


def test_a_job_of_members_whose_approvals_are_still_to_come_waits(office, files):
    path = files.enlarged(WITH_CLIENT)
    join(office, path, BANK, SOUTH)
    state = office.homes[BANK].propose(path, ("align", "train"), "test", "", 1.0)
    log = open_log_of(office.homes[BANK].folder)
    del log.chains[SHOP][:]
    lacking = Jobs.of(files.home(BANK).founding, log)
    assert (lacking.joined, lacking.unfit(state.offer)) == (None, [])
    assert "by which its members join, has not finished" in lacking.not_yet(state.offer)[0]


def test_members_that_are_there_stay_as_they_are(office, files):
    keys, sections = files.keys, files.sections(WITH_BOTH)
    moved = [sections[0] | {"hub": "127.0.0.1:9"}, *sections[1:]]
    unreachable = {key: value for key, value in sections[3].items() if key != "hub"}
    for changed, why in (
        ({"silos": [*sections[:3], unreachable]}, "silo 'insurer': hub is missing; add hub"),
        ({"silos": sections[1:]}, "its silos do not begin with bank, shop, bureau: members stay"),
        ({"silos": moved}, "silo 'bank': hub and accept_hubs stay"),
        ({"silos": [sections[0] | {"clients": ["south"]}, *sections[1:]]}, "its clients do not begin with north"),
        ({"silos": files.sections(COMPANIES)}, "it names no hub and no client that is new"),
        ({"silos": sections, "federation": {"name": "other"}}, "since certificates name it; it was not set"),
    ):
        path = files.folder / "changed.toml"
        path.write_text(toml_text(keys | changed))
        with pytest.raises(ConfigError, match=why):
            office.homes[BANK].propose(path, ("join",), "test", "", 1.0)
    files.reset()
    with pytest.raises(ConfigError, match=r"hub\.insurer is no party of .*federation\.toml; if it joins, name the"):
        files.home(INSURER)


def test_a_policy_names_who_may_join(office, files):
    state = office.homes[BANK].propose(files.enlarged(WITH_BOTH), ("join",), "test", "", 1.0)
    home = office.homes[BANK]
    facts = home.facts(home.jobs(), state, int(office.clock))
    some = {"proposers": ["bank"], "purposes": ["test"], "kinds": ["join"]}
    assert judge_content(Policy(**some, members=[SOUTH, INSURER, WEST]), facts) == []
    assert judge_content(Policy(**some, members=[SOUTH, WEST]), facts) == [f"members: '{INSURER}' is not among them"]
    assert judge_content(Policy(**some | {"kinds": ["train"]}, members=[SOUTH, INSURER, WEST]), facts) == [
        "kinds: 'join' is not among them"
    ]


def hostile(office, shared_file, steps):
    """A proposal that the bank's own program would not make, approved by the bank."""
    home = office.homes[BANK]
    expires = int(office.clock) + 3600
    offer = Offer(home.log.federation, BANK, shared_file, steps, "test", "", expires, "0" * 32)
    home.say(Proposed(offer))
    home.say(Approved(offer.job, expires, "person"))
    return offer


def test_a_job_of_no_party_is_left_alone_and_a_log_with_a_file_that_cannot_be_read_can_be_verified(office, files):
    nobody = [section | {"name": f"x{place}"} for place, section in enumerate(files.sections(COMPANIES))]
    hostile(office, toml_text(files.keys | {"silos": nobody}), ("align", "train"))
    unread = hostile(office, "no = [TOML", ("join",))
    office.settle()
    # The file that cannot be read is refused once.
    assert [office.homes[BANK].log.counts[hub] for hub in (SHOP, BUREAU)] == [1, 1]
    checked = tdcd("verify", office.homes[SHOP].folder, "--log", cwd=files.folder)
    assert checked.exit_code == 0, checked.output
    assert f"job {unread.job[:12]}: join of none, proposed by hub.bank" in checked.stdout


@pytest.mark.parametrize("late", [False, True])
def test_who_keeps_the_queue_cannot_let_members_join_after_the_expiry(office, files, late):
    offer = hostile(office, files.enlarged(WITH_CLIENT).read_text(), ("join",))
    for hub in (SHOP, BUREAU):
        office.homes[hub].say(Approved(offer.job, offer.expires, "person"))
    log = office.homes[BUREAU].log
    if late:
        log._clock = office.homes[BANK].log._clock = lambda: offer.expires + SKEW_S + 1
    office.homes[BANK].say(Closed(offer.job, "finished"))
    for hub in (BANK, SHOP):
        for signed in office.homes[hub].log.chains[hub]:
            log.accept(signed)
    assert office.jobs(BUREAU).joined == (None if late else offer.job)
