"""Real hubs choose and steer their steps as the simulation does, end alike, and continue after a crash bit for bit."""

import math

import pytest

from support.in_process import InProcess, largest_difference
from support.simulated import RIDGE, with_keys
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.ledger import Traffic
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import Part, Ready
from tdcd.runtime.process.status import end_of
from tdcd.training.train import train_plan

SLOW = [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": ["north", "south", "west"], "period": 2}]
THREE = [{"name": name, "clients": 3} for name in ("clinic", "lab", "registry")]
CERTIFICATE = ("gram", "mixture", "witness", "witness_scores", "residual", "norm", "gap")
CASES = {
    "linear": {},
    "labels at one silo": {"federation": {"labels": "lab"}},
    "overlap": {"train": {"overlap": 2}},
    "a slow silo": {"silos": SLOW, "evaluate": {"every": 4}},
    "masks": {"silos": THREE, "exchange": {"protect": "mask", "protect_blocks": True}},
    "few bits": {"exchange": {"phi_bits": 8, "block_bits": 8}},
    "shared, best": {"federation": {"share_model": True}, "evaluate": {"keep": "best"}},
    "several local steps": {"federation": {"labels": "lab"}, "train": {"local_steps": 3, "batch_size": 32}},
    "proven late": {"train": {"overlap": 2, "rounds": 200}, "model": {"l2": 1e-7}},
    "not proven": {"silos": SLOW, "evaluate": {"every": 4}, "train": {"rounds": 84}, "model": {"l2": 1e-7}},
    "steps that overflow": {
        "train": {"hub_optimizer": "momentum", "hub_step_size": 1e10, "rounds": 240},
        "evaluate": {"every": 20},
    },
    "late steps that overflow": {
        "train": {"hub_optimizer": "momentum", "hub_step_size": 1e10, "rounds": 240, "overlap": 2},
        "evaluate": {"every": 20},
    },
    "network": {"model": {"block": "mlp", "hidden": [4], "l2": 0.0}, "train": {"rounds": 40}},
    "ensemble": {"model": {"block": "ensemble", "hidden": [4, 3], "members": 2}, "train": {"rounds": 40}},
}


def config_of(name):
    keys = CASES[name]
    base = {key: value for key, value in RIDGE.items() if key != "train"}
    train = {"rounds": 120, "step_size": "auto", "tol": 1e-3, **keys.get("train", {})}
    return with_keys(base, **{**keys, "train": train, "evaluate": {"every": 5, **keys.get("evaluate", {})}})


def steps(history):
    return [(one.round, one.step, one.taken_back, math.isfinite(one.train_loss)) for one in history]


@pytest.mark.parametrize("name", CASES)
def test_hubs_steer_as_the_simulation_does(name):
    config = config_of(name)
    planned = plan(config)
    result = train_plan(planned)
    # A last bit may round a number in few bits, or in fixed point, to the next step.
    close = 1e-6 if config.exchange.changed else 1e-9
    office = InProcess(config, shards(planned), seed=1).run()
    assert {(end.status, end.reason) for end in office.ends.values()} == {("finished", result.reason)}
    assert not office.refused
    for history in office.history.values():
        assert steps(history) == steps(result.history)
        assert history[-1].train_loss == pytest.approx(result.history[-1].train_loss, rel=close)
        assert history[-1].bytes == result.history[-1].bytes
        assert history[-1].evaluation_bytes == result.history[-1].evaluation_bytes
        check_certificates(history, result.history, config)
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 100 * close
        assert office.machines[hub].rounds.final()[0] == result.round
        assert end_of(office.machines[hub]) == ("converged" if result.converged else "limit")


def check_certificates(history, simulated, config):
    """The same lines have one, and it is the same: to rounding in float64, where blocks are the same to rounding.

    What is rounded to few bits or in fixed point differs by steps of that.
    """
    close = 1e-4 if config.exchange.changed or config.train.overlap else 1e-9
    assert (history[-1].gap is None) == (config.model.block != "linear")
    for own, theirs in zip(history, simulated, strict=True):
        assert (own.gap is None, own.gradient_norm is None) == (theirs.gap is None, theirs.gradient_norm is None)
        if own.gap is not None:
            assert own.gap == pytest.approx(theirs.gap, rel=1e-3, abs=close * own.train_loss)
        if own.gradient_norm is not None:
            assert own.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)


def test_these_runs_grow_take_back_and_converge():
    lines = train_plan(plan(config_of("network"))).history
    assert max(line.step for line in lines) > 1
    late = train_plan(plan(config_of("overlap")))
    assert any(line.taken_back for line in late.history)
    assert train_plan(plan(config_of("linear"))).converged
    proven_late, not_proven = (train_plan(plan(config_of(name))) for name in ("proven late", "not proven"))
    assert proven_late.converged
    assert sum(line.gap is not None for line in proven_late.history) > 1
    assert not not_proven.converged
    assert "but is not proven to be near the best possible one: at most" in not_proven.reason


@pytest.mark.parametrize("name", ["steps that overflow", "late steps that overflow"])
def test_a_step_that_is_not_finite_is_taken_back_like_any_rise(name):
    result = train_plan(plan(config_of(name)))
    lost = [line for line in result.history if not math.isfinite(line.train_loss)]
    assert lost
    assert all(line.taken_back and not line.diverged for line in lost)
    assert (result.status, result.reason.split(",")[0]) == ("finished", "limit of 240 rounds reached")
    assert result.final.train_loss < 0.8 * result.history[0].train_loss


def test_a_run_that_no_step_helps_ends_as_diverged_with_a_sentence():
    # The clients' own steps overflow, whatever the hubs make of them.
    config = with_keys(
        {key: value for key, value in RIDGE.items() if key != "train"},
        train={"variant": "support.members:steered", "rounds": 120, "step_size": 1e200},
        evaluate={"every": 5},
    )
    planned = plan(config)
    result = train_plan(planned)
    words = "the loss stopped being a finite number {} round 50, and steps 3.52e+13 times shorter did not help"
    assert (result.status, result.reason, result.round) == ("diverged", words.format("by"), 0)
    office = InProcess(config, shards(planned), seed=1).run()
    assert {(end.status, end.reason) for end in office.ends.values()} == {("diverged", words.format("in"))}
    for history in office.history.values():
        assert steps(history) == steps(result.history)
    assert all(machine.rounds.final()[0] == 0 for machine in (office.machines[hub] for hub in office.hubs))


@pytest.mark.parametrize(
    "name", ["linear", "overlap", "a slow silo", "masks", "proven late", "steps that overflow", "ensemble"]
)
def test_a_hub_that_comes_back_continues_bit_for_bit(name):
    config = config_of(name)
    planned = plan(config)
    whole = InProcess(config, shards(planned), seed=2).run()
    hub = next(iter(whole.hubs))
    for stop in (3, 11, 24, 65):
        office = InProcess(config, shards(planned), seed=3)
        office.start()
        while office.deliver() and (hub not in office.states or office.states[hub].round < stop):
            pass
        state = office.states[hub]
        kept = [one for one in office.history[hub] if one.round not in state.unrecorded and one.round <= state.recorded]
        office.history[hub] = kept
        office.come_back(hub, state)
        assert [one.without_seconds() for one in office.history[hub]] == [
            one.without_seconds() for one in whole.history[hub]
        ]
        assert largest_difference(office.blocks()[hub], whole.blocks()[hub]) == 0


def test_products_reach_the_own_hub_only():
    config = config_of("linear")
    office = InProcess(config, shards(plan(config)), seed=0).run()
    sent = [one for one in office.sent if isinstance(one, Ready)]
    assert sent
    assert all(one.receiver == "hub." + one.sender.split(".")[1] for one in sent)
    assert all(one.products is not None for one in sent)


@pytest.mark.parametrize("name", ["linear", "masks", "labels at one silo", "a slow silo", "network"])
def test_the_ledger_has_what_is_sent_once_before_round_0(name):
    config = config_of(name)
    office = InProcess(config, shards(plan(config)), seed=0).run()
    sent = [one.payload_bytes for one in office.sent if isinstance(one, Ready) and one.products is not None]
    for history in office.history.values():
        assert history[0].bytes == Traffic(client_to_hub=sum(sent))
        assert history[0].messages == Traffic(client_to_hub=len(sent))
    assert bool(sent) is (name != "network")


def test_masked_products_show_nothing_but_their_sum():
    config = config_of("masks")
    masked = InProcess(config, shards(plan(config)), seed=0).run()
    dtypes = {one.products.values.dtype.name for one in masked.sent if isinstance(one, Ready)}
    assert dtypes == {"uint32"}


def test_without_steering_no_products_are_sent():
    config = check_config(RIDGE)
    office = InProcess(config, shards(plan(config)), seed=0).run()
    assert all(one.products is None for one in office.sent if isinstance(one, Ready))


@pytest.mark.parametrize("name", ["linear", "labels at one silo", "overlap", "masks", "proven late"])
def test_a_hub_that_comes_back_within_a_certificate_continues_bit_for_bit(name):
    """Killed after each kind of message of the certificate that ends the run."""
    config = config_of(name)
    planned = plan(config)
    whole = InProcess(config, shards(planned), seed=2).run()
    hub = [*whole.hubs][-1]
    sent = [one.flow for one in whole.sent if isinstance(one, Part) and one.sender == hub]
    flows = [flow for flow in dict.fromkeys(sent) if flow in CERTIFICATE]
    assert flows
    for flow in flows:
        office = InProcess(config, shards(planned), seed=3)
        office.start()
        while office.deliver() and not any(one.sender == hub and one.kind == flow for one in office.sent):
            pass
        state = office.states[hub]
        kept = [one for one in office.history[hub] if one.round not in state.unrecorded and one.round <= state.recorded]
        office.history[hub] = kept
        office.come_back(hub, state)
        lines = [one.without_seconds() for one in office.history[hub]]
        assert lines == [one.without_seconds() for one in whole.history[hub]]
        assert office.history[hub][-1].gap is not None
