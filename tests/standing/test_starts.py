"""No run starts against a policy: what follows from signed chains, for many policies, jobs and lies."""

import time
from random import Random

import msgspec
import pytest

from support.policies import is_within, policy_by_chance
from support.standing import COLUMNS, StandingFederation
from tdcd.records.run_folder import toml_text
from tdcd.standing.facts import Facts
from tdcd.standing.jobs import Jobs, job_of
from tdcd.standing.policy import judge, judge_content
from tdcd.standing.statements import Approved, Called, LogEntry, Offer, Proposed, Refused, SignedEntry

SILOS = {"bank": ["north"], "shop": ["main"], "bureau": ["east"]}
HUBS, CLIENT = ["hub.bank", "hub.shop", "hub.bureau"], "client.bureau.east"
EXAMPLES, NUM_JOBS = 10_000, 40


class Signed:
    """A federation, and entries of its parties, each signed once."""

    def __init__(self, folder):
        self.files = StandingFederation(folder, SILOS)
        self.homes = {party: self.files.home(party) for party in [*HUBS, CLIENT]}
        self.home, self.now, self._entries = self.homes[HUBS[0]], int(time.time()), {}

    def entry(self, party, statement, signer=None):
        """It, signed by the party or by another one; its place in the chain is not what is tested here."""
        key = party, statement, signer
        if key not in self._entries:
            entry = LogEntry(self.home.log.federation, party, 0, "0" * 64, self.now, statement)
            certificate, signature = self.homes[signer or party].signer.sign(entry.signed)
            self._entries[key] = SignedEntry(entry, certificate, signature)
        return self._entries[key]

    def offer(self, rng):
        """A job by chance."""
        keys, silos = self.files.keys, [{**silo} for silo in self.files.keys["silos"]]
        for silo in silos:
            silo["features"] = [name for name in COLUMNS[silo["name"]] if rng.random() < 0.9] or ["id2"]
        federation = {}
        if rng.random() < 0.4:
            federation["labels"] = "bank"
            silos = [silos[0], *({k: v for k, v in silo.items() if k != "label"} for silo in silos[1:])]
            if rng.random() < 0.5:
                federation |= {"label_epsilon": rng.choice([0.5, 1.0, 2.0]), "label_classes": ["no", "yes"]}
        shared = keys | {
            "silos": silos,
            "federation": federation | {"share_model": rng.random() < 0.1},
            "data": keys["data"] | {"rare": rng.choice([10, 10, 2])},
            "train": keys["train"] | {"rounds": rng.choice([1, 5, 25])},
            "exchange": {"protect": rng.choice(["mask", "none"])},
        }
        return Offer(
            federation=self.home.log.federation,
            proposer=rng.choice(HUBS),
            shared_file=toml_text(shared),
            steps=rng.choice([("align", "train"), ("align", "train"), ("train",)]),
            purpose=rng.choice(["credit", "fraud"]),
            contact="",
            expires=self.now + 3600,
            nonce=f"{rng.getrandbits(128):032x}",
        )


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    return Signed(tmp_path_factory.mktemp("federation") / "it")


def test_no_run_starts_against_a_policy(signed):
    rng, started, lies = Random(20261119), 0, 0
    offers = [signed.offer(rng) for _ in range(NUM_JOBS)]
    columns = ["id", "bought", *(name for names in COLUMNS.values() for name in names)]
    facts = [
        {party: Facts.of(offer, job_of(offer).config, party.split(".")[1], asked_at) for party in [*HUBS, CLIENT]}
        for offer in offers
        for asked_at in [signed.now + rng.randrange(86_400)]
    ]
    drawn = [policy_by_chance(rng, columns=columns, protect_blocks=False) for _ in range(EXAMPLES + len(HUBS))]
    log = signed.home.log
    for number in range(EXAMPLES):
        place = number % NUM_JOBS
        offer, other = offers[place], offers[place - 1]
        policies, asked = dict(zip([*HUBS, CLIENT], drawn[number : number + 4], strict=True)), facts[place]
        chains = {party: [] for party in log.chains}
        chains[offer.proposer] = [signed.entry(offer.proposer, Proposed(offer))]
        allowed = is_within(policies[CLIENT], asked[CLIENT], of_client=True)
        if judge_content(policies[CLIENT], asked[CLIENT]):
            chains[CLIENT].append(signed.entry(CLIENT, Refused(offer.job, "its policy")))
        for hub in HUBS:
            if hub == offer.proposer or not judge(policies[hub], asked[hub]):
                chains[hub].append(signed.entry(hub, Approved(offer.job, offer.expires, "policy")))
            allowed &= hub == offer.proposer or is_within(policies[hub], asked[hub])
        # What parties say without the right to, or to no avail: nothing follows from it.
        liar, victim = rng.sample(HUBS, 2)
        lie = rng.randrange(6)
        approval = Approved(offer.job, offer.expires, "person")
        if lie == 1:
            chains[CLIENT].append(signed.entry(CLIENT, approval))
        elif lie == 2:
            chains[victim].append(signed.entry(victim, Approved(other.job, other.expires, "person")))
        elif lie == 3:
            chains[victim].append(signed.entry(victim, msgspec.structs.replace(approval, expires=signed.now - 1)))
        elif lie == 4:
            chains[victim] = [signed.entry(victim, approval, signer=liar)]
            allowed &= False
        elif lie == 5:
            chains[HUBS[1]].append(signed.entry(HUBS[1], Called(offer.job, offer.steps[0], 1)))
        log.chains = chains
        jobs = Jobs.of(signed.home.founding, log)
        state = jobs.states.get(offer.job)
        if state is None:
            # The liar took the place of the proposal.
            assert lie == 4
            continue
        assert (jobs.next_statement(signed.now) == Called(offer.job, offer.steps[0], 1)) == allowed, (offer, policies)
        assert not state.calls
        if not number % 50:
            # What every party asks itself before it begins.
            assert (jobs.problems(state, signed.now) == []) == allowed
        started, lies = started + allowed, lies + (lie > 0)
    assert started > EXAMPLES / 100
    assert lies > EXAMPLES / 2
