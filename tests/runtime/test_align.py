"""Aligning over links: hubs with their own tables, or with clients that tell their ids."""

from threading import Event, Thread

import pytest
from typer.testing import CliRunner

from support.command import start_tdcd
from support.ports import free_ports
from tdcd.cli.app import app
from tdcd.config import check_config
from tdcd.runtime.job import Job
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.align import AlignClient, AlignHub
from tdcd.runtime.process.dialogue import converse
from tdcd.runtime.transport.transport import LocalNetwork

SECRET = bytes(range(32))
SILOS = [{"name": "bank", "clients": ["n", "s"]}, {"name": "shop", "clients": 1}, {"name": "bureau", "clients": 2}]
IDS = {
    "client.bank.n": ["1", "2", "3", "ä"],
    "client.bank.s": ["10", "11"],
    "hub.shop": ["2", "3", "4", "11", "ä"],
    "hub.bureau": ["11", "3", "ä", "12"],
}
COMMON = ["11", "3", "ä"]


def talk_all(dialogues):
    """Each dialogue in a thread of its own, over one network; what became of each."""
    network, outcomes, late = LocalNetwork(), {}, Event()

    def run(dialogue):
        with network.join(dialogue.name, dialogue.partners) as transport:
            outcomes[dialogue.name] = converse(dialogue, transport, lambda missing: None, late.is_set)

    threads = [Thread(target=run, args=(dialogue,), daemon=True) for dialogue in dialogues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        late.set() if thread.is_alive() else None
    return outcomes


def parties(ids=IDS, answers=None, silos=SILOS, known=(), config=None):
    """Hubs and clients; all ask for ids but those with other ``answers``."""
    job, answers = Job(check_config(config or {"silos": silos})), answers or {}
    hubs = [
        AlignHub(
            job,
            index,
            SECRET,
            {hub: ids[hub]} if hub in ids else None,
            answer=answers.get(hub, "ids"),
            known=known[hub] if isinstance(known, dict) else known,
        )
        for index, hub in enumerate(job.hubs)
    ]
    clients = [AlignClient(job, 0, name, ids[name], answers.get(name, "ids")) for name in job.clients(0) if name in ids]
    return [*hubs, *clients]


@pytest.mark.parametrize("known", [(), ("11",)])
def test_everybody_learns_the_common_ids_and_clients_only_their_own(known):
    dialogues = parties(known=known)
    outcomes = talk_all(dialogues)
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    found = {dialogue.name: dialogue.common for dialogue in dialogues}
    assert found["hub.bank"] == found["hub.shop"] == found["hub.bureau"] == COMMON
    assert found["client.bank.n"] == ["3", "ä"]
    assert found["client.bank.s"] == ["11"]


def test_answers_to_a_hub_that_was_killed_are_not_taken_for_those_to_the_next_one():
    ids, silos = {hub: IDS[hub] for hub in ("hub.shop", "hub.bureau")}, SILOS[1:]

    def hub_and_peer():
        return parties(ids, silos=silos)

    (former, peer), (current, _) = hub_and_peer(), hub_and_peer()

    def spoken(dialogue, messages):
        return [answer for message in messages for answer in dialogue.receive(message)]

    began, began_here = peer.start(), former.start()
    blinded, asked = spoken(former, began), spoken(peer, began_here)
    (stale,) = [message for message in spoken(peer, blinded) if message.step == "returned"]
    current.start()
    spoken(current, [*began, *asked])
    with pytest.raises(RejectedMessage, match="compared before one of the hubs came back"):
        current.receive(stale)
    assert not current.done


def test_an_id_that_two_clients_hold_stops_everybody_and_names_both():
    outcomes = talk_all(parties(ids={**IDS, "client.bank.s": ["10", "3"]}))
    assert {outcome.status for outcome in outcomes.values()} == {"refused"}
    assert "id '3' is held by client.bank.n and by client.bank.s" in outcomes["hub.shop"].reason


def test_counts_show_hubs_how_many_and_no_party_which():
    dialogues = parties(answers=dict.fromkeys(["hub.bank", "hub.shop", "hub.bureau", *IDS], "counts"))
    outcomes = talk_all(dialogues)
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    assert [dialogue.common for dialogue in dialogues] == [[]] * 5
    assert dialogues[0].counts == {"hub.shop": 4, "hub.bureau": 3}
    assert dialogues[1].counts == {"hub.bank": 4, "hub.bureau": 3}


ALL = {
    "data": {"source": "files", "samples": "all"},
    "federation": {"labels": "shop"},
    "silos": [{**silo, "label": "y"} if silo["name"] == "shop" else silo for silo in SILOS],
}


def test_where_silos_may_lack_samples_hubs_get_their_list_and_clients_their_samples():
    dialogues = parties(config=ALL)
    outcomes = talk_all(dialogues)
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    lists = {dialogue.name: dialogue.listed for dialogue in dialogues[:3]}
    numbers = {name: dict(zip(one.ids, one.numbers.tolist(), strict=True)) for name, one in lists.items()}
    assert numbers == {
        "hub.bank": {"11": 0, "2": 1, "3": 2, "ä": 4},
        "hub.shop": {"11": 0, "2": 1, "3": 2, "4": 3, "ä": 4},
        "hub.bureau": {"11": 0, "3": 2, "ä": 4},
    }
    assert {name: {*one.held_by} for name, one in lists.items()} == {
        "hub.bank": {"shop"},
        "hub.shop": {"bank", "bureau"},
        "hub.bureau": {"shop"},
    }
    assert [dialogue.common for dialogue in dialogues[3:]] == [["2", "3", "ä"], ["11"]]
    assert dialogues[1].counts == {"hub.bank": 4, "hub.bureau": 3}
    # The same again, and a new row of the bank's that the shop has had.
    more = {**IDS, "client.bank.s": ["10", "11", "4"]}
    again = parties(ids=more, config=ALL, known=lists)
    assert {outcome.status for outcome in talk_all(again).values()} == {"finished"}
    assert again[0].listed.ids == ("11", "2", "3", "4", "ä")
    assert again[1].listed.held_by["bank"].all()


@pytest.mark.parametrize("other", ["hub.shop", "client.bank.s"])
def test_parties_must_ask_for_the_same(other):
    outcomes = talk_all(parties(answers={other: "counts"}))
    assert any("asks for" in outcome.reason and other in outcome.reason for outcome in outcomes.values())
    assert {outcome.status for outcome in outcomes.values()} == {"refused"}


def test_different_shared_files_are_distinguished():
    dialogues = parties()
    other = Job(check_config({"silos": SILOS, "train": {"rounds": 7}}))
    dialogues[1] = AlignHub(other, 1, SECRET, {"hub.shop": IDS["hub.shop"]})
    reasons = " ".join(outcome.reason for outcome in talk_all(dialogues).values())
    assert "train.rounds is" in reasons


def test_the_command_says_what_each_silo_loses(tmp_path):
    """Two hubs as processes: the bank has labels, the shop has none, and one of its rows is known to nobody else."""
    ports = free_ports(2)
    (tmp_path / "bank.csv").write_text("id,y,x\n1,no,1\n2,no,2\n3,yes,3\n4,no,4\n")
    (tmp_path / "shop.csv").write_text("id,z\n4,1\n3,2\n9,3\n")
    (tmp_path / "shared.toml").write_text(
        f'[[silos]]\nname = "bank"\nlabel = "y"\nhub = "127.0.0.1:{ports[0]}"\n'
        f'[[silos]]\nname = "shop"\nhub = "127.0.0.1:{ports[1]}"\n'
    )
    started = {}
    for silo in ("bank", "shop"):
        own = ["--silo", silo, "--data", f"{silo}.csv", "--out", f"{silo}.txt", "--insecure"]
        started[silo] = start_tdcd("align", "shared.toml", *own, cwd=tmp_path, log=tmp_path / f"{silo}.log")
    assert [process.wait(300) for process in started.values()] == [0, 0]
    said = {silo: " ".join((tmp_path / f"{silo}.log").read_text().split()) for silo in started}
    assert "bank 4 2 2 (50.0%) no 75.0%, yes 25.0% no 50.0%, yes 50.0%" in said["bank"]
    assert "shop 3 2 1 (33.3%) – –" in said["shop"]
    assert (tmp_path / "bank.txt").read_text() == (tmp_path / "shop.txt").read_text() == "3\n4\n"
    for silo in ("bank", "shop"):
        own = ["--silo", silo, "--data", f"{silo}.csv", "--counts", "--insecure"]
        started[silo] = start_tdcd("align", "shared.toml", *own, cwd=tmp_path, log=tmp_path / f"{silo}.log")
    assert [process.wait(300) for process in started.values()] == [0, 0]
    assert "shop 2 50.0%" in " ".join((tmp_path / "bank.log").read_text().split())


def test_what_is_there_already_is_kept(tmp_path):
    shared, out = tmp_path / "federation.toml", tmp_path / "ids.txt"
    shared.write_text('[[silos]]\nname = "bank"\nhub = "127.0.0.1:7447"\n')
    out.write_text("mine")
    given = ["align", str(shared), "--silo", "bank", "--insecure", "--out", str(out)]
    done = CliRunner().invoke(app, given, env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"{out} is there already: choose another --out, or replace it with --force" in done.output
    assert out.read_text() == "mine"
