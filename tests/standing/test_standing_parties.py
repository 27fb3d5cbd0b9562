"""Services of three companies as processes: a job from its proposal to the report, and what kills do to it."""

import csv
import http.client
import json
import re
import signal
import socket
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from support.command import tdcd
from support.party_processes import assert_bit_identical, events, processes, wait_until
from support.standing import StandingFederation
from tdcd.federation import client_of
from tdcd.prediction.model import Model
from tdcd.prediction.predictions import write_sums
from tdcd.prediction.scores import SiloScores
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.standing.statements import Called

COMPANIES = {"bank": ["north", "south"], "shop": ["main"], "bureau": ["east"]}
BANK, SHOP, BUREAU = "hub.bank", "hub.shop", "hub.bureau"
RENEWED = "a new one is in use from now on"
"""What the log of a party says that has a new certificate."""


def job_of(federation, party, name):
    return federation.home(party).jobs().states.get(name)


def by_hand(federation, run, shared=None, of_hubs=None, data="data.csv"):
    """The same job as persons type it, with options of hubs; ``run`` starts a command. The hubs' run folders."""
    folder = federation.folder / "by-hand"
    folder.mkdir()
    hubs = {hub: folder / hub for hub in federation.hubs}
    for step in ("align", "train"):
        started = []
        for party in federation.parties:
            _, silo, *client = party.split(".")
            home, ids = federation.folder / party, folder / f"{party}.txt"
            words = [shared or federation.shared, "--silo", silo, "--certs", home / "certs"]
            words += ["--client", client[0], "--data", home / data] if client else []
            if step == "align":
                words = ["align", *words, "--out", ids]
            else:
                own = [*(of_hubs or {}).get(party, []), "--out", folder / party]
                words = ["client", *words, "--ids", ids] if client else ["hub", *words, *own]
            started.append(run(f"{step}.{party}", *words))
        wait_until(lambda: all(process.poll() is not None for process in started))  # noqa: B023
        assert [process.poll() for process in started] == [0] * len(started)
    return hubs


@contextmanager
def standing(federation, places=()):
    """Every party's service, by party; ``start`` starts one again. ``places`` are where steps are killed, by party."""
    places = dict(places)
    with processes(federation.folder) as start:

        def begin(party):
            return start(party, "party", federation.own(party), place=places.pop(party, None))

        yield {party: begin(party) for party in federation.parties}, begin


def predictions_of(federation, state, out):
    """The file that ``tdcd predict`` would write, of the blocks of all hubs and the new rows of all clients."""
    parts, models = {}, {}
    for hub in federation.hubs:
        silo = hub.removeprefix("hub.")
        models[silo] = Model.load(federation.home(hub).job_folder(state) / "run")
        files = [federation.folder / client_of(silo, client) / "new.csv" for client in federation.silos[silo]]
        scores = [models[silo].silo_scores(silo, file) for file in files]
        phi = np.concatenate([part.phi for part in scores])
        parts[silo] = SiloScores([sample for part in scores for sample in part.ids], phi)
    write_sums(out, models["bank"], parts, common=True, in_order_of="bank")
    return out.read_text()


def asked(path, *ids):
    """What a hub's own service answers at its Unix socket."""
    link = http.client.HTTPConnection("localhost", timeout=60)
    with closing(link):
        link.sock = socket.socket(socket.AF_UNIX)
        link.sock.connect(str(path))
        link.request("POST", "/predict", json.dumps({"ids": ids}), {"Content-Type": "application/json"})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())


def is_answered(path, sample):
    try:
        return asked(path, sample)[0] == 200
    except OSError:
        return False


def figures_of(federation, party):
    """What a party answers at /healthz and /metrics."""
    lines = events(federation.folder / f"{party}.log")
    address = [line["address"] for line in lines if line["event"] == "metrics"][-1].removesuffix("/metrics")
    with urlopen(f"{address}/healthz") as health, urlopen(f"{address}/metrics") as figures:
        lines = [line.rpartition(" ") for line in figures.read().decode().splitlines() if not line.startswith("#")]
        return json.load(health), {name: float(value) for name, _, value in lines}


def trains(federation, party):
    """Whether a party says that it is in a round; a service that was started again has to begin to answer."""
    try:
        return figures_of(federation, party)[1].get("tdcd_round", 0) > 0
    except OSError:
        return False


def assert_alerts_are_about(figures):
    """Every alert is about a figure that a party shows."""
    rules = (Path(__file__).parents[2] / "deploy" / "prometheus" / "tdcd.rules.yml").read_text()
    used = {*re.findall(r"^ +expr: .*?(tdcd_\w+)", rules, re.MULTILINE)}
    assert len(used) > 6
    assert used <= {name.partition("{")[0] for name in figures}


def listening(process):
    """The TCP ports at which a process and those that it has started listen."""
    pids = [process.pid]
    for pid in pids:
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    links = [str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in links]


def job_by_command(federation, services, *words):
    """Proposed at the bank, approved by policies, and finished."""
    words = ["propose", *words, "--purpose", "test", "--party", federation.own(BANK)]
    name = tdcd(*words, cwd=federation.folder).stdout.split()[-1]
    wait_until(
        lambda: all(job_of(federation, party, name) is not None for party in federation.parties), *services.values()
    )
    wait_until(lambda: all(job_of(federation, party, name).is_over for party in federation.parties))
    state = job_of(federation, BANK, name)
    assert state.closed == "finished"
    return state


def assert_answered_while_another_job_trains(federation, services, start, served, expected):
    """The numbers of the predictions that were made, although the parties are busy with the next model."""
    endless = federation.folder / "endless.toml"
    endless.write_text(toml_text(federation.keys | {"train": federation.keys["train"] | {"rounds": 100_000}}))
    name = federation.home(BANK).propose(endless, ("align", "train"), "test", "", 1.0).name
    began = (SHOP, Called(name, "train", 1))
    wait_until(lambda: name in federation.home(SHOP).jobs().states, *services.values())
    wait_until(lambda: began in job_of(federation, SHOP, name).started, *services.values())
    rows = [*csv.DictReader(expected.splitlines())]
    wait_until(lambda: asked(served, rows[0]["id"])[0] == 200)
    code, answer = asked(served, *(row["id"] for row in rows))
    assert (code, answer["missing"], [*answer["added"]]) == (200, {}, ["bank", "shop", "bureau"])
    assert answer["predictions"]["prediction"] == [row["prediction"] for row in rows]
    assert answer["predictions"]["probability_yes"] == [float(row["probability_yes"]) for row in rows]
    np.testing.assert_allclose(np.sum([*answer["added"].values()], axis=0), answer["scores"], rtol=1e-5)
    assert asked(served, "nobody")[0] == 404
    # Both processes are started again after a crash of the service.
    services[BANK].kill()
    services[BANK].wait()
    services[BANK] = start(BANK)
    wait_until(lambda: is_answered(served, rows[0]["id"]))
    wait_until(lambda: trains(federation, BANK))
    # Of TCP a hub has its port, and one of loopback behind it, the bank also that of its figures; clients have none.
    for party, process in services.items():
        ports = listening(process)
        assert len(ports) == (2 + (party == BANK) if party in federation.hubs else 0)
        assert party not in federation.hubs or int(federation.hubs[party].rpartition(":")[2]) in ports
    health, figures = figures_of(federation, BANK)
    assert (health["party"], health["up"], health["jobs"]["running"]) == (BANK, True, 1)
    assert figures['tdcd_connected{party="hub.shop"}'] == figures['tdcd_jobs{waits_for="running"}'] == 1
    assert_alerts_are_about({*figures})
    # A hub that trains gets a new certificate, and trains on.
    federation.renew(BUREAU)
    log = federation.home(BUREAU).job_folder(job_of(federation, BUREAU, name)) / "train.log"
    wait_until(lambda: RENEWED in log.read_text(), *services.values())
    before = figures_of(federation, BANK)[1]["tdcd_round"]
    wait_until(lambda: figures_of(federation, BANK)[1]["tdcd_round"] > before + 3, *services.values())
    federation.home(BANK).refuse(job_of(federation, BANK, name), "enough")
    wait_until(lambda: all(job_of(federation, party, name).is_over for party in federation.parties))


def test_one_proposal_and_approvals_are_a_run_as_typed_by_hand_whoever_is_killed(tmp_path):
    federation = StandingFederation(tmp_path / "it", COMPANIES, rounds=40)
    allowed = {"kinds": ["train", "predict", "delete"], "predictions": ["bank"], "jobs_per_day": 4}
    federation.write_policy(SHOP, **allowed, rounds=100_000)
    federation.write_policy(BANK, epsilon_per_month=8.0)
    federation.write_own(BANK, serve="./predict.sock", metrics="0")
    federation.write_own(SHOP, memory=2.0, cores=1)
    served = federation.folder / BANK / "predict.sock"
    with processes(tmp_path) as run:
        reference = by_hand(federation, run)
    # A hub dies when it has sent its ids, blinded, to both others: it comes back with other points for the same ids.
    with standing(federation, {SHOP: "send.align_rows.after:4"}) as (services, start):
        said = tdcd(
            "propose", federation.shared, "--purpose", "test", "--party", federation.own(BANK), cwd=tmp_path
        ).stdout
        name = said.split()[-1]
        wait_until(
            lambda: all(job_of(federation, party, name) is not None for party in federation.parties), *services.values()
        )
        shown = tdcd("show", name[:8], "--party", federation.own(BUREAU), cwd=tmp_path).stdout
        assert "columns:            bureau: features score, loans; id id; label bought\nlevels:" in shown
        assert tdcd("approve", name[:8], "--party", federation.own(BUREAU), cwd=tmp_path).exit_code == 0
        for step, victims in (("align", ["client.bank.north", SHOP]), ("train", [SHOP, "client.bureau.east"])):
            for victim in victims:
                began, log = (victim, Called(name, step, 1)), federation.folder / f"{victim}.log"
                wait_until(lambda: began in job_of(federation, victim, name).started)  # noqa: B023
                if (step, victim) == ("align", SHOP):
                    wait_until(lambda: "step crashed" in log.read_text())  # noqa: B023
                services[victim].kill()
                services[victim].wait()
                services[victim] = start(victim)
        wait_until(lambda: all(job_of(federation, party, name).is_over for party in federation.parties))
        state = job_of(federation, BANK, name)
        assert state.closed == "finished"
        assert [call.attempt for call in state.calls] == [1, 1]
        assert asked(served, "n5") == (
            503,
            {"error": "no job has predicted for this silo: tdcd propose --predict JOB makes one"},
        )
        assert [state.approvals[hub].entry.statement.by for hub in (BANK, SHOP, BUREAU)] == [
            "person",
            "policy",
            "person",
        ]
        for hub, home in reference.items():
            run = federation.home(hub).job_folder(state) / "run"
            assert_bit_identical(run, home)
            assert (run / "report.html").exists()
        # While no step runs, too.
        wait_until(lambda: figures_of(federation, BANK)[1].get('tdcd_phase{phase="standing by"}') == 1)
        _, figures = figures_of(federation, BANK)
        assert figures['tdcd_epsilon_left{limit="epsilon_per_month"}'] == 8
        assert figures['tdcd_jobs{waits_for="queue"}'] == 0
        assert_alerts_are_about({*figures})
        expected = predictions_of(federation, state, tmp_path / "expected.csv")
        # The last of three companies lets its machine approve, too.
        federation.write_policy(BUREAU, **allowed, rounds=100_000)
        shown = tdcd("status", federation.folder / BUREAU / "standing", cwd=tmp_path)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.startswith(f"{BUREAU}: standing by, alive\n  connected   ")
        services[BUREAU].send_signal(signal.SIGTERM)
        assert services[BUREAU].wait() == 0
        assert tdcd("status", federation.folder / BUREAU / "standing", cwd=tmp_path).exit_code == 1
        last = json.loads((federation.folder / f"{BUREAU}.log").read_text().splitlines()[-1])
        assert (last["event"], last["why"]) == ("stopped", "it was asked to")
        services[BUREAU] = start(BUREAU)
        # Parties that stand by get new certificates and keys; no process is started for that.
        for party in (SHOP, "client.bank.south"):
            federation.renew(party)
            log = federation.folder / f"{party}.log"
            wait_until(lambda: RENEWED in log.read_text(), *services.values())  # noqa: B023
        about = job_by_command(federation, services, "--predict", name, "--to", "bank")
        folders = {hub: federation.home(hub).job_folder(about) for hub in federation.hubs}
        assert (folders[BANK] / "predictions.csv").read_text() == expected
        assert (folders[BANK] / "predictions.csv").stat().st_mode & 0o777 == 0o600
        assert not any((folders[hub] / "predictions.csv").exists() for hub in (SHOP, BUREAU))
        assert_answered_while_another_job_trains(federation, services, start, served, expected)
        job_by_command(federation, services, "--delete", name)
        wait_until(lambda: asked(served, "n5")[0] == 503)
        assert not any(federation.home(party).job_folder(state).exists() for party in federation.parties)
    checked = tdcd("verify", federation.folder / "client.shop.main" / "standing", "--log", cwd=tmp_path)
    assert "12 approved" in checked.stdout
    assert checked.exit_code == 0


def test_a_job_that_is_refused_while_it_runs_is_over_and_the_next_one_runs(tmp_path):
    federation = StandingFederation(tmp_path / "it", {"bank": ["north"], "shop": ["main"]}, rounds=100_000)
    # The next one also trains on samples that a silo lacks: its alignment makes the hubs' lists.
    short, keys = tmp_path / "short.toml", federation.keys
    keys = keys | {"data": keys["data"] | {"samples": "all"}, "train": keys["train"] | {"rounds": 2}}
    short.write_text(toml_text(keys))
    quick = tmp_path / "quick.toml"
    quick.write_text(toml_text(federation.keys | {"train": keys["train"]}))
    kinds = ["train", "audit"]
    federation.write_policy(SHOP, kinds=kinds, rounds=100_000, jobs_per_day=3, samples="all")
    bank = federation.home(BANK)
    endless = bank.propose(federation.shared, ("align", "train"), "test", "", 1.0).name
    with standing(federation) as (services, _):
        client = "client.shop.main"
        wait_until(lambda: job_of(federation, client, endless) is not None, *services.values())
        # Those who have left for a step know no more of others.
        began = (client, Called(endless, "train", 1))
        wait_until(lambda: began in job_of(federation, client, endless).started, *services.values())
        following = bank.propose(short, ("align", "train"), "test", "", 1.0).name
        own = federation.own(client)
        assert tdcd("refuse", endless[:8], "--because", "too long", "--party", own, cwd=tmp_path).exit_code == 0
        wait_until(lambda: bank.jobs().states[endless].refusals, *services.values())
        wait_until(lambda: bank.jobs().states[following].calls, *services.values())
        wait_until(lambda: bank.jobs().states[following].closed == "finished", *services.values())
        audited = job_by_command(federation, services, quick, "--audit")
    # The proposer has the figures of both silos, a client its own page, and the other hub nothing.
    report = json.loads((bank.job_folder(audited) / "audit" / "audit.json").read_text())
    assert {hub: "own hub" in {one["line"] for one in found} for hub, found in report.items()} == {
        BANK: True,
        SHOP: True,
    }
    folders = {party: federation.home(party).job_folder(audited) / "audit" for party in federation.parties}
    assert [(folder / "audit.html").exists() for folder in folders.values()] == [True, False, True, True]
    tables = [
        {key: value for key, value in silo.items() if key != "clients"}
        | {"client": [{"name": name, "table": f"{client_of(silo['name'], name)}/data.csv"} for name in silo["clients"]]}
        for silo in keys["silos"]
    ]
    alone = federation.folder / "alone.toml"
    alone.write_text(toml_text(keys | {"silos": tables}))
    assert tdcd("run", alone, "--out", tmp_path / "alone", cwd=tmp_path).exit_code == 0
    ours = read_history(bank.job_folder(bank.jobs().states[following]) / "run" / "history.jsonl")
    theirs = read_history(tmp_path / "alone" / "history.jsonl")
    assert [record.train_loss for record in ours] == pytest.approx([record.train_loss for record in theirs], rel=1e-5)
    assert bank.jobs().states[endless].refusals == {client: "too long"}
    listed = tdcd("jobs", "--party", federation.own(SHOP), cwd=tmp_path).stdout
    assert "refused by client.shop.main: too long" in " ".join(listed.split())
