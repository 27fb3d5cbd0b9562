"""What hubs and clients read at every start besides their folder: damaged, it ends in a sentence, or is found out."""

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.config import check_config
from tdcd.records.run_folder import toml_text
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, own_file, read_data
from tdcd.runtime.storage.hub_folder import HubFolder

CONFIG = {
    "data": {"source": "files"},
    "silos": [
        {
            "name": "bank",
            "hub": "127.0.0.1:1",
            "label": "late",
            "categorical": ["town"],
            "client": [{"name": "north", "table": "north.csv"}],
        },
        {"name": "shop", "hub": "127.0.0.1:2", "client": [{"name": "south", "table": "south.csv"}]},
    ],
    "train": {"rounds": 6, "step_size": 0.05, "batch_size": 4},
}
NORTH = "id,age,town,late\n1,30,A,0\n2,41,B,1\n3,52,A,0\n4,23,,1\n"
OTHER = "id,visits\n1,3\n2,4\n3,5\n4,6\n"


@pytest.fixture
def home(tmp_path):
    """All that the hub and the client of a silo need, and the hub's folder of a run that has begun."""
    (tmp_path / "federation.toml").write_text(toml_text(CONFIG))
    (tmp_path / "north.csv").write_text(NORTH)
    (tmp_path / "ids.txt").write_text("1\n2\n3\n")
    (tmp_path / "party.toml").write_text('certs = "certs"\nout = "hub"\n')
    throwaway(tmp_path / "certs", {"hub.bank": ["127.0.0.1"], "hub.shop": ["127.0.0.1"]}, ["client.bank.north"])
    HubFolder(tmp_path / "hub", Job(check_config(CONFIG)), 0).close()
    return tmp_path


def truncated(content):
    return content[: len(content) * 2 // 3]


def emptied(content):
    return b""


def changed(content):
    return content.replace(b"0.05", b"0.06").replace(b"certs", b"cents").replace(b"A", b"B")


HUB_FILES = ["federation.toml", "party.toml", "certs/ca.pem", "certs/hub.bank.pem", "certs/hub.bank.key"]
CLIENT_FILES = ["certs/ca.pem", "certs/client.bank.north.pem", "certs/client.bank.north.key"]
HOW = [truncated, emptied, changed]
SWAPPED = [("certs/hub.bank.pem", "certs/hub.shop.pem"), ("certs/hub.bank.key", "certs/hub.shop.key")]


def hub(home):
    return CliRunner().invoke(
        app, ["hub", str(home / "federation.toml"), "--silo", "bank", "--party", str(home / "party.toml")]
    )


def assert_sentence(result, word):
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert word in result.output.replace("\n", "")


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
@pytest.mark.parametrize("file", [*HUB_FILES, "certs/federation.secret"])
def test_a_hub_with_a_damaged_file(home, file, how):
    path = home / file
    if path.name == "federation.secret" and how is changed:
        path.write_bytes(b"zz" + path.read_bytes()[2:])
    elif path.name == "party.toml" and how is not changed:
        path.write_bytes(b'certs = "ce')
    else:
        path.write_bytes(how(path.read_bytes()))
    assert_sentence(hub(home), "" if path.name in ("federation.toml", "party.toml") else path.parent.name)


@pytest.mark.parametrize(("file", "other"), SWAPPED)
def test_a_hub_with_the_file_of_another(home, file, other):
    (home / file).write_bytes((home / other).read_bytes())
    assert_sentence(hub(home), file)


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
@pytest.mark.parametrize("file", CLIENT_FILES)
def test_a_client_with_a_damaged_file(home, file, how):
    (home / file).write_bytes(how((home / file).read_bytes()))
    words = ["client", "federation.toml", "--silo", "bank", "--client", "north"]
    words[1] = str(home / words[1])
    options = ["--data", str(home / "north.csv"), "--certs", str(home / "certs")]
    assert_sentence(CliRunner().invoke(app, [*words, *options]), file)


def digest(home, **options):
    files = {"data": str(home / "north.csv"), "ids": str(home / "ids.txt"), **options}
    return read_data(check_config(CONFIG), 0, own_file(None, **files)).digest


def test_a_client_s_rows_are_known_by_their_digest(home):
    """The hub compares it with the one that the run began with, see test_joining."""
    known = digest(home)
    assert known == digest(home)
    for rows in (NORTH.replace("41", "42"), NORTH.replace("52,A", "52,B"), NORTH.replace("41,B,1", "41,B,0")):
        (home / "north.csv").write_text(rows)
        assert digest(home) != known
    (home / "north.csv").write_text(NORTH)
    for ids in ("1\n2\n", "1\n2\n3\n4\n"):
        (home / "ids.txt").write_text(ids)
        assert digest(home) != known


@pytest.mark.parametrize("content", ["", NORTH[:2], NORTH[:40], OTHER, "\x00\x01"])
def test_rows_that_cannot_be_the_client_s(home, content):
    (home / "north.csv").write_text(content)
    own = PartySection(data=str(home / "north.csv"))
    with pytest.raises(ValueError, match=r"north\.csv"):
        read_data(check_config(CONFIG), 0, own)
