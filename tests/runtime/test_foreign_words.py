"""Words of other parties, wherever they are shown: they are no markup, no control characters, and not endless."""

import io
import json
import logging

import pytest

from support.command import tdcd
from support.simulated import RIDGE, with_keys
from tdcd.cli.console import WaitingDisplay
from tdcd.cli.terminal import PlainConsole
from tdcd.core.words import MOST_LETTERS, one_line, visible
from tdcd.pages.kit.html import paragraph
from tdcd.pages.live.server import Watcher
from tdcd.runtime.job import IncompatibleParties, Job, compare_settings
from tdcd.runtime.messages.messages import Diverged, Stop
from tdcd.runtime.messages.wire import encode
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.process.log import _ForMachines, _ForPeople
from tdcd.runtime.transport.transport import LocalNetwork, Received

# Markup that ends what never began; a terminal's title, colour and a cleared screen; text that runs backwards; a letter
# without a width; an eight-bit control sequence; a line that was never printed.
EVIL = "[/x] [red]:bomb: \x1b]0;title\x07 \x1b[2J\x1b[31m \u202eabc\u2066 a\u200bb \x9b31m \U000e0041 é 日本"
HIDDEN = "\x1b\x07\u202e\u2066\u200b\x9b\U000e0041"


def is_clean(text):
    return not any(letter in text for letter in HIDDEN) and all(
        letter.isprintable() or letter in "\n\t" for letter in text
    )


@pytest.fixture
def hub(tmp_path):
    """The folder of a hub whose status has such words in every field that can hold a text."""
    facts = {
        "party": EVIL,
        "phase": EVIL,
        "round": EVIL,
        "rounds": EVIL,
        "train_loss": 0.5,
        "test_loss": None,
        "labels": EVIL,
        "connected": [EVIL],
        "missing": [EVIL],
        "missing_s": {EVIL: 3.0},
        "left_out": [EVIL],
        "revoked": [EVIL],
        "refused": {EVIL: 3},
        "phi_age": {EVIL: 2},
        "last_error": f"{EVIL}\n  connected   nobody",
        "status": None,
    }
    (tmp_path / "status.json").write_text(json.dumps(facts))
    (tmp_path / "config.toml").write_text("[train]\nrounds = 4\n")
    (tmp_path / "history.jsonl").write_text("")
    (tmp_path / "federation.json").write_text(json.dumps({"name": EVIL, "silos": [{"name": EVIL, "clients": [1]}]}))
    return tmp_path


def test_the_health_check_survives_them(hub):
    shown = tdcd("status", hub, cwd=hub)
    # The process is gone in the middle of a run.
    assert shown.exit_code == 1, shown.exception
    assert "[/x] [red]:bomb: \\x1b]0;title\\x07 \\x1b[2J\\x1b[31m \\u202eabc" in shown.output
    assert is_clean(shown.output)
    # One line per field, whatever a field says.
    assert [line[:11].strip() for line in shown.output.splitlines()].count("connected") == 1
    assert is_clean(tdcd("status", hub, "--json", cwd=hub).output)


def test_a_terminal_shows_them_as_they_are_written_and_still_has_its_own_colours():
    console = PlainConsole()
    console.file, console._force_terminal, console._color_system = io.StringIO(), True, None
    console.print(EVIL, style="red")
    with WaitingDisplay(console, f"aligning {EVIL}") as waiting:
        waiting.show([EVIL])
    assert "[/x] [red]:bomb: \\x1b]0;title" in console.file.getvalue()
    assert "\x07" not in console.file.getvalue()
    assert "\x1b[?25l" in console.file.getvalue(), "the progress bar hides the cursor"


def test_a_party_that_waits_for_long_says_once_what_may_have_happened():
    console, now = PlainConsole(), [0.0]
    console.file = io.StringIO()
    with WaitingDisplay(console, "aligning", lambda: now[0]) as waiting:
        for now[0], missing in [(0, ["hub.shop", "hub.bank"]), (50, ["hub.shop"]), (105, ["hub.shop"])]:
            waiting.show(missing)
        assert "has finished" not in console.file.getvalue()
        for now[0] in (120, 300):
            waiting.show(["hub.shop"])
    said = "If hub.shop has finished already, start this command again at all parties."
    assert console.file.getvalue().count(said) == 1


def read(message):
    """A message as its receiver has it."""
    end = LocalNetwork().join(message.receiver, [message.sender])
    return Endpoint(end).read(Received(message.sender, encode(message)))


def test_reasons_are_one_short_line_when_they_arrive():
    for message in (
        Stop("hub.a", "hub.b", status="refused", reason=f"{EVIL}\r\nall is well\u2028{'x' * 10**6}"),
        Diverged("hub.a", "hub.b", reason=f"{EVIL}\n" * 10**4),
    ):
        found = read(message).reason
        assert is_clean(found)
        assert "\n" not in found
        assert len(found) <= MOST_LETTERS
    plain = Stop("hub.a", "hub.b", status="refused", reason="hub.a has 3 samples and 'é' is none")
    assert read(plain).reason == plain.reason


@pytest.mark.parametrize("key", [f"train.rounds.{EVIL}", "train.rounds." + "x" * 10**6])
def test_settings_that_differ_are_named_in_a_short_line(key):
    job = Job(with_keys(RIDGE))
    with pytest.raises(IncompatibleParties) as caught:
        compare_settings("hub.b", {key: EVIL * 10**4}, "hub.a", job)
    assert is_clean(str(caught.value))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("formatter", [_ForPeople(), _ForMachines("hub.a")])
def test_the_log_has_one_line_for_an_event(formatter):
    facts = {"why": f"{EVIL}\nended  status=finished"}
    record = logging.makeLogRecord({"msg": "refused", "levelno": 30, "levelname": "WARNING", "facts": facts})
    line = formatter.format(record)
    assert is_clean(line)
    assert "\n" not in line


def test_pages_show_what_cannot_be_seen(hub):
    state = Watcher([hub]).state()
    (run,) = json.loads(state)["runs"]
    assert "\\u202eabc" in json.dumps(run, ensure_ascii=False)
    assert is_clean(json.dumps(run, ensure_ascii=False))
    assert is_clean(paragraph(EVIL))
    assert "<p>[/x]" in paragraph(EVIL)


def test_letters_of_all_languages_stay():
    for text in ("Zürich", "日本語", "العربية", "हिन्दी", "a\tb\nc", "12\u00a0000"):
        assert visible(text) == text
    assert one_line("a\n\n b") == "a b"
