"""``tdcd doctor``: what is wrong, what to do, and the exit status."""

import socket
from pathlib import Path

import pytest

from support.command import tdcd
from tdcd import __version__
from tdcd.runtime.certificates.issue import create_authority, issue
from tdcd.runtime.process.doctor import can_listen, can_reach, clock

pytestmark = pytest.mark.quick

FEDERATION = """
[data]
source = "diabetes"
[[silos]]
name = "clinic"
hub = "127.0.0.1:{first}"
[[silos]]
name = "lab"
hub = "127.0.0.1:{second}"
"""


@pytest.fixture
def ports():
    """Two listening sockets of this machine: the test closes the one that is to be free."""
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
            one.listen()
        yield first, second


@pytest.fixture
def home(tmp_path, ports):
    first, second = (one.getsockname()[1] for one in ports)
    (tmp_path / "federation.toml").write_text(FEDERATION.format(first=first, second=second))
    return tmp_path


def test_a_good_machine_is_status_0(tmp_path):
    done = tdcd("doctor", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    for subject in (f"versions: tdcd {__version__}, Python 3.", "devices: ", "disk: ", "clock: "):
        assert subject in done.stdout
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    done = tdcd("doctor", cwd=tmp_path)
    assert done.exit_code == 1
    assert f"wrong   disk: {tmp_path / 'runs'} cannot be written: choose another folder with --out" in done.stdout


def test_hubs_are_reachable_or_not_yet_there(home, ports):
    ports[1].close()
    done = tdcd("doctor", "federation.toml", cwd=home)
    assert done.exit_code == 0
    assert "ok      hub.clinic: 127.0.0.1:" in done.stdout
    assert "caution hub.lab: nothing listens at 127.0.0.1:" in done.stdout


def test_a_hub_needs_its_port(home, ports):
    taken = tdcd("doctor", "federation.toml", "--silo", "clinic", cwd=home)
    assert taken.exit_code == 1
    assert "wrong   hub.clinic: cannot listen at 127.0.0.1:" in taken.stdout
    assert "stop what uses the port, or listen elsewhere with --listen" in taken.stdout
    port = ports[0].getsockname()[1]
    ports[0].close()
    assert can_listen("hub.clinic", f"127.0.0.1:{port}").words == f"port {port} is free"


def test_a_client_asks_for_its_own_hub_only(home):
    done = tdcd("doctor", "federation.toml", "--silo", "lab", "--client", "c1", cwd=home)
    assert done.exit_code == 0
    assert "hub.lab" in done.stdout
    assert "hub.clinic" not in done.stdout
    unknown = tdcd("doctor", "federation.toml", "--silo", "lab", "--client", "c9", cwd=home)
    assert unknown.exit_code == 1
    assert "--client c9: silo 'lab' has no such client; it has c1" in unknown.stdout


def test_what_cannot_be_reached_says_why():
    assert can_reach("hub.a", "no-such-host.invalid:7447").level == "wrong"
    assert "is not a known host name" in can_reach("hub.a", "no-such-host.invalid:7447").words
    for check in (can_reach, can_listen):
        assert (
            check("hub.a", "127.0.0.1:99999").words == "127.0.0.1:99999: there is no port 99999: ports go up to 65535"
        )


def test_a_file_with_mistakes_is_a_finding(home):
    (home / "federation.toml").write_text("[train]\nrouns = 3\n")
    done = tdcd("doctor", "federation.toml", cwd=home)
    assert done.exit_code == 1
    assert "train.rouns: there is no such key; did you mean 'rounds'?" in done.stdout


def test_certificates_are_checked_party_by_party(home):
    create_authority(home / "certs")
    for party, hosts in (("hub.clinic", ["127.0.0.1"]), ("hub.lab", ["10.0.0.1"]), ("client.lab.c1", [])):
        issue(home / "certs", party, hosts)
    (home / "certs" / "client.lab.c1.key").chmod(0o644)
    done = tdcd("doctor", "federation.toml", cwd=home)
    assert done.exit_code == 1
    assert "ok      certificate of hub.clinic: good" in done.stdout
    assert "wrong   certificate of hub.lab: " in done.stdout
    assert "caution certificate of client.lab.c1: " in done.stdout
    assert "chmod 600" in done.stdout
    (home / "certs" / "federation.secret").unlink()
    clinic = tdcd("doctor", "federation.toml", "--silo", "clinic", cwd=home).stdout
    assert "wrong   certificate of hub.clinic: certs/federation.secret" in clinic
    missing = tdcd("doctor", "federation.toml", "--silo", "clinic", "--client", "c1", cwd=home)
    assert missing.exit_code == 1
    assert "wrong   certificate of client.clinic.c1: certs/client.clinic.c1.pem" in missing.stdout


def test_a_clock_before_the_installation_is_wrong():
    installed = Path(__file__).stat().st_mtime
    assert clock(installed + 60, installed).level == "ok"
    late = clock(0.0, installed)
    assert late.level == "wrong"
    assert late.words.startswith("1970-01-01 00:00:00 UTC, but tdcd was installed on 20")
