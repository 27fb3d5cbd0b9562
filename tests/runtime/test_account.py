"""The account of a silo: what its runs spent, over runs, crashes and limits; a changed line is found."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command import tdcd
from support.examples import num_examples
from support.simulated import RIDGE, with_keys
from tdcd.config import ConfigError
from tdcd.core.codecs.codec import Identity
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, account_for_predictions, run_hub
from tdcd.runtime.process.trial import Trial
from tdcd.runtime.storage.account import Account, Limits, Totals, account_table
from tdcd.runtime.storage.hub_folder import HubFolder

FREE = Limits()
EPSILONS = (1.0, 2.0)
JOBS = {epsilon: Job(with_keys(RIDGE, exchange={"epsilon": epsilon})) for epsilon in EPSILONS}
PLAIN = Job(with_keys(RIDGE))


@num_examples(20)
@given(
    st.lists(
        st.tuples(st.sampled_from(EPSILONS), st.sampled_from(["killed", "back", "ended"]), st.integers(0, 6)),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_said_is_never_below_what_was_sent_over_runs_and_crashes(tmp_path_factory, runs):
    """A run that ended in round r sent messages of r rounds; one that was killed may have sent all."""
    account, inverse = Account(tmp_path_factory.mktemp("account") / "account.jsonl"), 0.0
    for number, (epsilon, fate, rounds) in enumerate(runs):
        job, name = JOBS[epsilon], f"run {number}"
        account.begin(job, 0, name, FREE)
        if fate == "back":
            account.begin(job, 0, name, FREE)
        if fate == "ended":
            account.end(job, 0, name, rounds)
            account.end(job, 0, name, rounds)
        exchanged = job.settings.num_exchanged
        # Every second round is evaluated, and the last of 6.
        sent = rounds * exchanged + rounds // 2 + 1 if fate == "ended" else 6 * exchanged + 4
        inverse += sent / job.variant.exchange.sigma**2
    totals = Totals.of(account.read())
    assert totals.runs == len(runs)
    assert totals.phi >= GaussianNoise(1.0, 1 / math.sqrt(inverse)).epsilon(1) - 1e-9
    if all(fate != "ended" for _, fate, _ in runs):
        # Gaussian mechanisms add up in squares, and so to less than the sum.
        assert max(epsilon for epsilon, _, _ in runs) * 0.999 <= totals.phi <= sum(run[0] for run in runs)
    # All have labels here, as they are.
    assert (totals.labels, totals.plain_labels) == (0.0, len(runs))


def test_clients_changes_are_counted_over_runs_next_to_phi(tmp_path):
    account = Account(tmp_path / "account.jsonl")
    of_three = [{**silo, "clients": 3} for silo in RIDGE["silos"]]
    job = Job(with_keys(RIDGE, silos=of_three, exchange={"protect_blocks": True, "block_epsilon": 1.0}))
    account.begin(job, 0, "first", FREE)
    account.end(job, 0, "first", 2)
    noise = job.variant.block_exchange.noise
    # The next round may have begun.
    assert Totals.of(account.read()).blocks == noise.epsilon(3)
    account.begin(job, 0, "second", FREE)
    totals = Totals.of(account.read())
    assert totals.blocks == pytest.approx(noise.epsilon(3 + 6), abs=1e-6)
    assert totals.phi is None
    with pytest.raises(ValueError, match=r"most_block_epsilon = 1\.5: with this run it would be 1\.6"):
        account.begin(job, 0, "third", Limits(block_epsilon=1.5))
    with pytest.raises(ValueError, match="most_block_epsilon = 9: with this run it would be changes without noise"):
        account.begin(PLAIN, 0, "fourth", Limits(block_epsilon=9.0))


def test_label_epsilons_of_all_runs_add_up(tmp_path):
    account = Account(tmp_path / "account.jsonl")
    base = {**RIDGE, "data": {"source": "breast_cancer"}}
    for number, epsilon in enumerate((1.0, 1.0, 1.5)):
        job = Job(with_keys(base, federation={"label_epsilon": epsilon}))
        account.begin(job, 0, f"run {number}", FREE)
    totals = Totals.of(account.read())
    assert (totals.labels, totals.plain_labels, totals.phi) == (3.5, 0, None)
    job = Job(with_keys(base, federation={"label_epsilon": 0.25}))
    with pytest.raises(ValueError, match=r"most_label_epsilon = 3\.6: with this run it would be 3\.75"):
        account.begin(job, 0, "run 4", Limits(label_epsilon=3.6))


@pytest.mark.parametrize(
    ("job", "limits", "sentence"),
    [
        (
            JOBS[2.0],
            Limits(epsilon=2.5),
            r"most_epsilon = 2\.5: with this run it would be 2\.9\d*\. This run is not begun",
        ),
        (
            PLAIN,
            Limits(epsilon=9.0),
            "most_epsilon = 9: with this run it would be phi without noise, which has no epsilon",
        ),
        (PLAIN, Limits(runs=1), "most_runs = 1: with this run it would be 2 runs on labels as they are"),
        (PLAIN, Limits(label_epsilon=1.0), "labels as they are in 2 runs, which has no epsilon"),
    ],
)
def test_a_run_beyond_a_limit_is_not_begun_and_not_counted(tmp_path, job, limits, sentence):
    account = Account(tmp_path / "account.jsonl")
    account.begin(JOBS[2.0], 0, "first", FREE)
    with pytest.raises(ValueError, match=sentence):
        account.begin(job, 0, "second", limits)
    assert [line.run for line in account.read()] == ["first"]


def test_a_line_that_is_missing_or_was_changed_is_named(tmp_path):
    account = Account(tmp_path / "account.jsonl")
    for number in range(3):
        account.begin(JOBS[1.0], 0, f"run {number}", FREE)
    lines = account.path.read_text().splitlines()
    changed = lines[0].replace('"messages":', '"messages":1')
    for content, number in (
        ([lines[0], lines[2]], 2),
        ([changed, *lines[1:]], 2),
        (["{}", *lines[1:]], 1),
        ([lines[0], "no JSON", lines[2]], 2),
    ):
        account.path.write_text("".join(f"{line}\n" for line in content))
        with pytest.raises(ValueError, match=rf"account\.jsonl, line {number}: .* Restore the file"):
            account.read()
        with pytest.raises(ValueError, match="Restore the file"):
            account.begin(JOBS[1.0], 0, "another", FREE)


def test_missing_lines_at_the_end_and_a_missing_file_are_found(tmp_path):
    account = Account(tmp_path / "account.jsonl")
    for number in range(3):
        account.begin(JOBS[1.0], 0, f"run {number}", FREE)
    content = account.path.read_text()
    for kept in ("", content.split("\n")[0] + "\n", None):
        if kept is None:
            account.path.unlink()
        else:
            account.path.write_text(kept)
        with pytest.raises(ValueError, match=r"account\.jsonl has [01] readable lines? of the 3 .* Restore the file"):
            account.begin(JOBS[1.0], 0, "another", FREE)
    account.path.write_text(content)
    account.begin(JOBS[1.0], 0, "another", FREE)
    (tmp_path / "account.jsonl.head").write_text("{}")
    with pytest.raises(ValueError, match=r"account\.jsonl\.head is damaged: .* Restore the file"):
        account.read()


def test_a_torn_line_is_dropped_before_the_next_one_is_added(tmp_path):
    account = Account(tmp_path / "account.jsonl")
    account.begin(JOBS[1.0], 0, "first", FREE)
    with account.path.open("a") as file:
        file.write('{"before": "12')
    account.begin(JOBS[1.0], 0, "second", FREE)
    assert [line.run for line in account.read()] == ["first", "second"]


def test_what_has_no_noise_or_other_noise_is_not_counted_as_gaussian(tmp_path, monkeypatch):
    """The hub with the labels sends slopes as they are; a codec of one's own may have a sigma of any meaning."""
    job = Job(with_keys(RIDGE, exchange={"epsilon": 2.0}, federation={"labels": "lab"}))
    account = Account(tmp_path / "account.jsonl")
    account.begin(job, 0, "clinic", Limits(epsilon=2.1))
    assert account.read()[0].sigma == job.variant.exchange.sigma
    with pytest.raises(ValueError, match=r"most_epsilon = 2\.1: with this run it would be phi without noise"):
        Account(tmp_path / "lab.jsonl").begin(job, 1, "lab", Limits(epsilon=2.1))
    other = Job(with_keys(RIDGE))
    object.__setattr__(other.variant, "exchange", Laplace())
    account.begin(other, 0, "own", FREE)
    assert account.read()[-1].sigma is None


class Laplace(Identity):
    sigma = 1.0


def test_predictions_are_counted_by_who_got_them_and_have_no_epsilon(tmp_path):
    account = Account(tmp_path / "account.jsonl", clock=lambda: 0)
    account.begin(JOBS[1.0], 0, "first", FREE)
    assert Totals.of(account.read()).phi == pytest.approx(1.0, abs=1e-3)
    account.predicted(JOBS[1.0], "first", "lab", 12)
    account.predicted(JOBS[1.0], "first", "shop", 3)
    # The run comes back, and is counted already; it ends.
    account.begin(JOBS[1.0], 0, "first", FREE)
    account.end(JOBS[1.0], 0, "first", 6)
    assert [line.what for line in account.read()] == ["begun", "predicted", "predicted", "ended"]
    totals = Totals.of(account.read())
    assert (totals.runs, totals.phi, totals.predicted_rows) == (1, None, 15)
    assert account_table(account.read()).rows[0][2:] == ["lab", "as it is", "–", "–", "phi of 12 rows to predict with"]
    assert "Phi sent to predict with: 15 rows." in tdcd("spent", "account.jsonl", cwd=tmp_path).stdout
    with pytest.raises(ConfigError, match="most_epsilon = 2: predictions send phi of new rows as it is"):
        account_for_predictions(PartySection(account=str(account.path), most_epsilon=2.0))


def test_a_hub_keeps_to_the_key_of_its_noise(tmp_path):
    def folder():
        return HubFolder(tmp_path / "run", JOBS[1.0], 0)

    first = folder()
    key = first.noise_key()
    first.close()
    second = folder()
    assert second.noise_key() == key
    (tmp_path / "run" / "noise.key").write_text("00" * 16)
    with pytest.raises(ValueError, match=r"noise\.key is not the key that this run began with"):
        second.noise_key()
    (tmp_path / "run" / "noise.key").unlink()
    with pytest.raises(ValueError, match=r"noise\.key is missing, and another one draws other noise"):
        second.noise_key()
    second.close()


def test_a_hub_refuses_before_anything_is_sent_and_limits_need_an_account(tmp_path):
    job = Job(with_keys(RIDGE, silos=[{**silo, "hub": "127.0.0.1:9"} for silo in RIDGE["silos"]]))
    own = PartySection(account=str(tmp_path / "a.jsonl"), out=str(tmp_path / "run"), most_epsilon=1.0, insecure=True)
    with pytest.raises(ValueError, match=r"a\.jsonl: most_epsilon = 1: with this run it would be phi without noise"):
        run_hub(job, "clinic", own, lambda: True)
    with pytest.raises(ConfigError, match="most_runs = 3: goes with account, the file of what was spent; name one"):
        run_hub(job, "clinic", PartySection(most_runs=3, insecure=True), lambda: True)


def test_the_command_shows_runs_and_sums(tmp_path):
    account = Account(tmp_path / "account.jsonl", clock=lambda: 0)
    account.begin(JOBS[2.0], 0, "first", FREE)
    account.end(JOBS[2.0], 0, "first", 6)
    done = tdcd("spent", "account.jsonl", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "1970-01-01 00:00" in done.stdout
    assert (
        "1 run. Epsilon of a row's phi: 2 (delta = 1e-05). Epsilon of a label: 0; 1 run on labels as they"
        in done.stdout
    )
    facts = json.loads(tdcd("spent", "account.jsonl", "--json", cwd=tmp_path).stdout)
    assert (facts["runs"], facts["plain_labels"]) == (1, 1)
    missing = tdcd("spent", "none.jsonl", cwd=tmp_path)
    assert (missing.exit_code, "none.jsonl: there is no such file" in missing.stderr) == (2, True)


@pytest.mark.slow
def test_real_hubs_with_noise_have_the_simulations_history_and_account_for_what_they_sent(tmp_path, monkeypatch):
    keys = {
        **RIDGE,
        "silos": [{"name": name, "clients": 3} for name in ("clinic", "lab")],
        "exchange": {"epsilon": 2.0, "protect_blocks": True, "block_epsilon": 4.0},
    }
    (tmp_path / "shared.toml").write_text(toml_text(keys))
    trial = Trial.prepare(tmp_path / "shared.toml", [], tmp_path / "trial")
    begin = trial._start

    def with_account(party, role, options):
        begin(party, role, [*options, *(["--account", str(tmp_path / f"{party}.jsonl")] if role == "hub" else [])])

    monkeypatch.setattr(trial, "_start", with_account)
    assert trial.run(lambda: None, lambda: False).status == "finished"
    for silo, other in (("clinic", "lab"), ("lab", "clinic")):
        home, account = tmp_path / "trial" / "silos" / silo, Account(tmp_path / f"hub.{silo}.jsonl")
        assert [line.what for line in account.read()] == ["begun", "ended"]
        assert account.read()[-1].to == [other]
        # 6 rounds of 4 minibatches, and evaluations of rounds 0, 2, 4 and 6.
        assert account.read()[-1].messages == 28
        history = read_history(home / "history.jsonl")
        assert history[-1].epsilon == pytest.approx(Totals.of(account.read()).phi, abs=1e-8)
        assert 1.999 < history[-1].epsilon <= 2.0
        assert account.read()[-1].blocks == 6
        assert history[-1].block_epsilon == pytest.approx(Totals.of(account.read()).blocks, abs=1e-8)
        assert 3.99 < history[-1].block_epsilon <= 4.0
        assert not (home / "noise.key").exists()
    # Clients have deleted the secrets of their noise.
    names = {path.name for path in (tmp_path / "trial" / "certs").glob("client.*.key")}
    assert names == {
        f"client.{silo}.{client}.key" for silo in ("clinic", "lab") for client in trial.job.config.silos[0].client_names
    }
