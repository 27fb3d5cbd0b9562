"""Services of several versions, as processes: one is upgraded after the other, also while a job runs; and a protocol of
another version is refused at both ends, until the job has ended that runs.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from test_standing_parties import BANK, SHOP, job_of, standing

import tdcd
from support.party_processes import ENVIRONMENT, assert_bit_identical, end, events, status, wait_until
from support.standing import ROWS, StandingFederation
from tdcd.runtime.messages.wire import PROTOCOL

COMPANIES = {"bank": ["north"], "shop": ["main"]}
NEWER, OTHER = "9.1.0", "9.2.0"


def installed(folder, version, protocol=PROTOCOL):
    """Another version of the package, as in an environment of its own."""
    package = folder / version / "tdcd"
    shutil.copytree(Path(tdcd.__file__).parent, package)
    for name, old, new in (
        ("__init__.py", f'__version__ = "{tdcd.__version__}"', f'__version__ = "{version}"'),
        ("runtime/messages/wire.py", f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {protocol}\n"),
    ):
        text = (package / name).read_text()
        assert text.count(old) == 1
        (package / name).write_text(text.replace(old, new))
    return package.parent


@contextmanager
def of_version(federation):
    """``start(party, installed)`` starts a party's service by another version."""
    started = []

    def start(party, where):
        command = [sys.executable, "-m", "tdcd", "party", str(federation.own(party))]
        paths = os.pathsep.join(filter(None, [str(where), ENVIRONMENT.get("PYTHONPATH", "")]))
        with (federation.folder / f"{party}.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT | {"PYTHONPATH": paths}
                )
            )
        return started[-1]

    try:
        yield start
    finally:
        end(started, federation.folder)


def replaced(process, start, *what):
    """Another process in place of one that is asked to stop."""
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    return start(*what)


def begun(federation):
    """A job that trains."""
    state = federation.home(BANK).propose(federation.shared, ("train",), "test", "", 1.0)
    wait_until(lambda: job_of(federation, SHOP, state.name) is not None)
    federation.home(SHOP).approve(job_of(federation, SHOP, state.name))
    for hub in (BANK, SHOP):
        run = federation.home(hub).job_folder(state) / "run"
        wait_until(lambda: status(run).get("round", -1) > 1)  # noqa: B023
    return state.name


def ended(federation, name):
    wait_until(lambda: all(job_of(federation, party, name).is_over for party in federation.parties))
    state = job_of(federation, BANK, name)
    assert state.closed == "finished"
    return [federation.home(hub).job_folder(state) / "run" for hub in (BANK, SHOP)]


def test_parties_are_upgraded_one_by_one_while_jobs_run_and_another_protocol_waits_for_their_end(tmp_path):
    federation = StandingFederation(tmp_path / "it", COMPANIES, rounds=200)
    for party in ("client.bank.north", "client.shop.main"):
        (federation.folder / party / "ids.txt").write_text("".join(f"k{n}\n" for n in range(ROWS) if n % 10 > 1))
        federation.write_own(party, ids="ids.txt")
    newer, other = installed(tmp_path, NEWER), installed(tmp_path, OTHER, PROTOCOL + 1)
    with standing(federation) as (services, _), of_version(federation) as start:
        first = ended(federation, begun(federation))
        middle = begun(federation)
        for party in (SHOP, "client.shop.main"):
            services[party] = replaced(services[party], start, party, newer)
        assert not job_of(federation, BANK, middle).is_over
        assert_same(ended(federation, middle), first)
        for party in ("client.bank.north", BANK):
            services[party] = replaced(services[party], start, party, newer)
        last = begun(federation)
        services[SHOP] = replaced(services[SHOP], start, SHOP, other)
        ours, theirs = f"speaks protocol {PROTOCOL}", f"speaks protocol {PROTOCOL + 1}"
        log = federation.home(BANK).job_folder(job_of(federation, BANK, last)) / "train.log"
        wait_until(lambda: f"{SHOP} {theirs} and {BANK} {PROTOCOL}: upgrade the older one" in log.read_text())
        wait_until(lambda: any(line["event"] == "waits" and ours in line["why"] for line in said(federation, SHOP)))
        assert "a job that runs ends first, with the version that it began with" in said(federation, SHOP)[-1]["why"]
        services[SHOP] = replaced(services[SHOP], start, SHOP, newer)
        assert_same(ended(federation, last), first)
        for party in federation.parties:
            versions = [line["version"] for line in said(federation, party) if line["event"] == "standing by"]
            assert [*dict.fromkeys(versions)][:2] == [tdcd.__version__, NEWER]


def said(federation, party):
    return events(federation.folder / f"{party}.log")


def assert_same(ours, theirs):
    for mine, wanted in zip(ours, theirs, strict=True):
        assert_bit_identical(mine, wanted)
