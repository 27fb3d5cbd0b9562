"""Variants of TDCD as entries of a comparison: from words to plans, and several seeds of each."""

import json

import numpy as np
import pytest

from tdcd.compare import compare, network_of, num_runs, plan_all
from tdcd.compare.comparison import parse_entries
from tdcd.compare.tables import interactions, summary
from tdcd.config import ConfigError, check_config
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.family.heads import Pairs
from tdcd.core.family.optimizers import ClientOptimizer
from tdcd.core.family.overlap import Overlap
from tdcd.core.variant import Variant
from tdcd.pages.comparison import write_page
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import run
from tdcd.training.train import ledger_of, simulate

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": [3, 2]},
    "model": {"block": "linear"},
    "train": {"step_size": 0.05, "rounds": 6, "local_steps": 4, "batch_size": 32},
    "evaluate": {"every": 2},
    "network": {"preset": "wan", "step_ms": 3, "slower": {"silo2": 4}},
}
CONFIG = check_config(KEYS)
NETWORK = network_of(CONFIG.network)
ENTRIES = ["tdcd,overlap=1,phi_bits=8", "tdcd,period.silo2=3,overlap=1", "fedbcd"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    plans = plan_all(CONFIG, ENTRIES, seeds=2)
    return compare(plans, NETWORK, out, step_seconds=0.003, slower=CONFIG.network.slower), out


def only(text):
    """The plan of one entry."""
    (_, (planned,)) = plan_all(CONFIG, [text]).values()
    return planned


def test_keys_of_every_section_become_the_variant():
    planned = only("tdcd, overlap=2, period.silo2=3, phi_bits=4, block_bits=8, optimizer=momentum, momentum=0.5")
    assert planned.variant.timing == Overlap(2, (1, 3))
    assert planned.variant.exchange == planned.variant.client_exchange == Quantised(4)
    assert planned.variant.block_exchange == QuantisedChange(8)
    assert isinstance(planned.variant.update, ClientOptimizer)
    tuned = only("tdcd,step_size=0.5,minibatches=reused,batch_size=16,gradient=mean").settings
    assert (tuned.step_size, tuned.minibatches, tuned.batch_size, tuned.gradient) == (0.5, "reused", 16, "mean")


def test_a_head_is_an_entry_with_steps_of_its_own():
    planned = only("tdcd,head=pairs,head_rank=3")
    assert (planned.objective.combine, planned.config.model.head_rank) == (Pairs(3), 3)
    assert (planned.settings, planned.variant) == (only("tdcd,head=hidden").settings, Variant())
    # Steps that are scaled by curvature are of sums: with automatic steps a head takes those of networks.
    automatic = check_config({**KEYS, "train": {"rounds": 6}})
    plans = plan_all(automatic, ["tdcd,head=hidden"])
    (scaled,), (headed,) = plans.values()
    assert (scaled.settings.local_steps, headed.settings.local_steps) == (1, 10)
    assert (headed.config.train.rounds, headed.objective.l2) == (6, scaled.objective.l2)


def test_what_a_head_gains_is_reported_with_an_interval(tmp_path):
    config = check_config({**KEYS, "evaluate": {"every": 6, "holdout": 0.5}})
    for seeds in (1, 3):
        plans = plan_all(config, ["tdcd,head=pairs", "tdcd,overlap=1"], seeds=seeds)
        comparison = compare(plans, NETWORK, tmp_path / str(seeds), step_seconds=0.003)
        tested, margin = interactions(comparison)
        assert tested == RunFolder(comparison.tdcd.run.path).subsets()["interactions"]["words"]
        assert tested.startswith(("No interaction between silos was found", "Columns of silo1 and silo2"))
        gains = [
            with_head.final.metrics["test"]["r2"] - without.final.metrics["test"]["r2"]
            for without, with_head in zip(comparison.tdcd.runs, comparison.contenders[1].runs, strict=True)
        ]
        assert margin.startswith(f"tdcd, head=pairs changes the held-out R² by {np.mean(gains):+.4f}")
        if seeds == 1:
            assert margin.endswith(", with one seed; --seeds 5 gives an interval.")
        else:
            half = 4.302653 * np.std(gains, ddof=1) / 3**0.5
            low, high = np.mean(gains) - half, np.mean(gains) + half
            assert f"(95 % interval {low:+.4f} to {high:+.4f}, 3 seeds): " in margin
        page = write_page(comparison, tmp_path / str(seeds)).read_text()
        assert margin in page
        assert json.loads((tmp_path / str(seeds) / "compare.json").read_text())["interactions"] == [tested, margin]


@pytest.mark.parametrize(("steps", "rounds", "every"), [(2, 12, 4), (1, 24, 8), (8, 3, 1), (5, 5, 2), (100, 1, 1)])
def test_other_local_steps_are_as_many_in_all(steps, rounds, every):
    planned = only(f"tdcd,local_steps={steps}")
    assert planned.settings.local_steps == steps
    assert (planned.config.train.rounds, planned.config.evaluate.every) == (rounds, every)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("tdcd,overlp=2", "there is no key 'overlp' that changes how TDCD trains. Did you mean 'overlap'? There are "),
        ("tdcd,rounds=9", "there is no key 'rounds' that changes how TDCD trains. There are step_size, tol, "),
        ("tdcd,period.lab=4", "period.silo1, period.silo2"),
        ("tdcd,overlap=-1", "train.overlap = -1: must be greater than or equal to 0"),
        ("tdcd,phi_bits=5", "exchange.phi_bits = 5: must be 32, 8 or 4"),
        ("tdcd,batch_size=9999", "train.batch_size = 9999: there are only 354 training samples"),
        ("tdcd,period.silo1=2,period.silo2=2", "silos: every silo has a period above 1"),
        ("tdcd,clients=0", "federation.clients = 0"),
        ("sgd,overlap=1", "'overlap=1' changes nothing; write tdcd before it"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(entry, problem):
    with pytest.raises(ConfigError) as caught:
        plan_all(CONFIG, [entry])
    assert problem in str(caught.value)
    assert f"--with {entry}" in str(caught.value)


def test_entries_with_commas_between_and_one_by_one():
    silos = ["bank", "lab"]
    together = parse_entries(["sgd,tdcd,overlap=2,fedbcd, tdcd, period.lab=4"], silos)
    apart = parse_entries(["sgd", "tdcd, overlap = 2", "fedbcd", "tdcd,period.lab=4"], silos)
    assert together == apart
    assert [entry.label for entry in together] == ["sgd", "tdcd,overlap=2", "fedbcd", "tdcd,period.lab=4"]


def test_a_variants_run_is_that_of_its_configuration(done, tmp_path):
    """Whether the silos are named or only counted, and with the second seed too."""
    comparison, _ = done
    keys = {key: value for key, value in KEYS.items() if key != "federation"} | {
        "seed": 1,
        "train": KEYS["train"] | {"overlap": 1},
        "silos": [{"name": "silo1", "clients": 3}, {"name": "silo2", "clients": 2, "period": 3}],
    }
    alone = run(check_config(keys), tmp_path / "alone")
    variant = comparison.contenders[2]
    assert variant.label == "tdcd,period.silo2=3,overlap=1"
    # Seeds run as one batch, which agrees to rounding.
    losses = [record.train_loss for record in alone.history]
    assert [record.train_loss for record in variant.runs[1].history] == pytest.approx(losses, rel=1e-5)
    assert [record.bytes for record in variant.runs[1].history] == [record.bytes for record in alone.history]


def test_each_seed_has_its_runs_and_one_seed_shares_the_first(done):
    comparison, out = done
    assert comparison.num_seeds == 2
    for contender in comparison.contenders:
        assert [run.path for run in contender.runs] == [out / contender.label, out / "seed-1" / contender.label]
        first, second = (run.final.train_loss for run in contender.runs)
        assert first != second
    single = compare(
        plan_all(CONFIG, ENTRIES),
        NETWORK,
        out,
        step_seconds=0.003,
        observe=lambda step: pytest.fail(f"{step.label} ran again"),
    )
    assert [contender.runs for contender in single.contenders] == [(each.run,) for each in comparison.contenders]


def test_what_hides_waiting_is_predicted_to_be_faster(done):
    comparison, _ = done
    tdcd, overlap, period, fedbcd = (contender.prediction.seconds_per_round for contender in comparison.contenders)
    assert overlap < tdcd
    assert period < overlap
    # A slow silo is slow in a baseline too: 4 steps of 12 ms, and phi of one minibatch.
    assert fedbcd > 4 * 0.012


def test_what_computes_the_same_is_timed_once(done):
    _, out = done
    names = ["tdcd,overlap=1,phi_bits=8", "tdcd,period.silo2=3,overlap=1", "tdcd,local_steps=2", "tdcd,optimizer=adam"]
    timed = compare(plan_all(CONFIG, names), NETWORK, out)
    tdcd, overlap, period, *others = timed.contenders
    assert tdcd.compute == overlap.compute == period.compute
    for contender, own in ((tdcd, True), (overlap, False), (period, False), *((each, True) for each in others)):
        assert (contender.run.path / "compute.json").exists() == own


def test_the_table_has_means_and_their_spread(done):
    comparison, _ = done
    for contender, row in zip(comparison.contenders, summary(comparison).rows, strict=True):
        losses = [run.final.train_loss for run in contender.runs]
        assert row[1] == f"{np.mean(losses):#.4g} ± {(max(losses) - min(losses)) / 2:.1g}"


def test_the_page_shows_bands_and_its_numbers_every_seed(done):
    comparison, out = done
    page = write_page(comparison, out).read_text()
    for words in (
        "means over 2 seeds",
        "bands go from the lowest to the highest",
        "those of silo2 take 4 times as long",
    ):
        assert words in page
    assert "TDCD with period.silo2 = 3, overlap = 1. A slow silo makes one update" in page
    # In each of the four figures, a band under each of the four lines.
    assert page.count('class="band"') >= 16
    numbers = json.loads((out / "compare.json").read_text())
    assert numbers["slower"] == {"silo2": 4}
    entry = numbers["runs"]["tdcd,overlap=1,phi_bits=8"]
    assert [each["seed"] for each in entry["seeds"]] == [0, 1]
    finals = [each["final"]["train loss"] for each in entry["seeds"]]
    assert entry["final"]["train loss"] == pytest.approx(np.mean(finals))
    tdcd = numbers["runs"]["tdcd"]["seeds"]
    assert all(each["to_tdcd_loss"]["round"] <= 6 for each in tdcd)


def test_other_numbers_of_clients_split_the_same_rows():
    planned = only("tdcd,clients=6")
    assert [silo.num_clients for silo in planned.federation.silos] == [6, 6]
    before = plan_all(CONFIG, [])["tdcd"][0].federation
    for silo, same in zip(planned.federation.silos, before.silos, strict=True):
        np.testing.assert_array_equal(silo.features, same.features)


def test_clients_that_stay_away_send_nothing():
    (_, everybody), (_, some) = (
        (label, plans[0]) for label, plans in plan_all(CONFIG, ["tdcd,participation=0.4"]).items()
    )
    whole, part = (
        ledger_of(simulate(planned), simulate(planned).init().blocks).traffic(5, "bytes")
        for planned in (everybody, some)
    )
    # One client of three and one of two: a third of the first silo's rows, half of the second's.
    phi, blocks = 4 * 32 * 4, (6 * 4, 5 * 4)
    assert whole.client_to_hub == 5 * (2 * phi + 3 * blocks[0] + 2 * blocks[1])
    assert part.client_to_hub == round(5 * (1 / 3 + 1 / 2) * phi) + 5 * (blocks[0] + blocks[1])


def test_tuning_takes_the_best_step_size_of_as_many_for_each(done):
    """The run with the configuration's step size serves as one of those that are tried, and the best as the result."""
    untuned, out = done
    plans = plan_all(CONFIG, ["fedbcd", "tdcd,step_size=0.02"], seeds=2)
    comparison = compare(plans, NETWORK, out, step_seconds=0.003, tune=True)
    for contender in comparison.contenders[:2]:
        assert [*contender.tried] == [0.005, 0.015, 0.05, 0.15, 0.5]
        losses = {size: loss for size, loss in contender.tried.items() if np.isfinite(loss)}
        assert contender.step_size == min(losses, key=losses.__getitem__)
        assert {run.config["train"]["step_size"] for run in contender.runs} == {contender.step_size}
        assert contender.run.final.train_loss == pytest.approx(losses[contender.step_size])
    assert comparison.tdcd.tried[0.05] == pytest.approx(untuned.tdcd.run.final.train_loss)
    assert [*comparison.contenders[2].tried] == [0.02]
    table = summary(comparison)
    column = table.head.index("step size")
    assert table.rows[2][column] == "0.02 (given)"
    page = write_page(comparison, out).read_text()
    assert "is the one of 0.005, 0.015, 0.05, 0.15, 0.5 that had the lowest training loss" in page
    entry = json.loads((out / "compare.json").read_text())["runs"]["fedbcd"]
    assert len(entry["tried"]) == 5
    # Five tries and a second seed of two entries, and two seeds of the third.
    assert num_runs(plans, tune=True) == 6 + 6 + 2
