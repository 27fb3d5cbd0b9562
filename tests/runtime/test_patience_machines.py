"""Real hubs end a run early, all alike, keep the simulation's model, and go on after a crash bit for bit."""

import pytest

from support.in_process import InProcess, largest_difference
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.records.outcome import Stopping
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import Stop
from tdcd.runtime.storage.checkpoint import Checkpoints
from tdcd.training.train import train

NOISY = {"rounds": 60, "step_size": 0.2, "batch_size": 16}
SLOW = [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": ["north", "south", "west"], "period": 2}]
CASES = {
    "best": {"evaluate": {"keep": "best"}},
    "last": {},
    "no samples held out": {"evaluate": {"keep": "best", "holdout": 0.0}},
    "shared": {"evaluate": {"keep": "best"}, "federation": {"share_model": True}},
    "overlap": {"evaluate": {"keep": "best", "every": 1, "patience": 4}, "train": {"overlap": 2}},
    "overlap, last, shared": {
        "evaluate": {"every": 1, "patience": 4},
        "train": {"overlap": 2},
        "federation": {"share_model": True},
    },
    "a slow silo": {"evaluate": {"every": 3, "keep": "best"}, "silos": SLOW},
    "labels at one silo": {"evaluate": {"keep": "best"}, "federation": {"labels": "lab"}},
    "hub momentum": {"evaluate": {"keep": "best"}, "train": {"hub_optimizer": "momentum", "momentum": 0.4}},
}


def config_of(name):
    keys = CASES[name]
    evaluate = {"patience": 3, **keys.get("evaluate", {})}
    return with_keys(RIDGE, **{**keys, "train": {**NOISY, **keys.get("train", {})}, "evaluate": evaluate})


def simulated(config):
    planned = plan(config)
    parts = (planned.federation, planned.blocks, planned.objective, planned.settings)
    evaluate = config.evaluate
    return planned, train(
        *parts,
        rounds=config.train.rounds,
        evaluate_every=evaluate.every,
        patience=evaluate.patience,
        keep=evaluate.keep,
        variant=planned.variant,
    )


@pytest.mark.parametrize("name", CASES)
def test_hubs_end_where_the_simulation_does_with_its_model(name):
    config = config_of(name)
    planned, result = simulated(config)
    assert 0 < result.history[-1].round < config.train.rounds
    assert result.round == Stopping.of(config.model_dump()).kept(result.history).round
    for seed in (0, 1):
        office = InProcess(config, shards(planned), seed=seed).run()
        assert {(end.status, end.reason) for end in office.ends.values()} == {("finished", result.reason)}
        assert not office.refused
        for history in office.history.values():
            assert [one.round for one in history] == [one.round for one in result.history]
            assert history[-1].train_loss == pytest.approx(result.history[-1].train_loss, rel=1e-10)
        for hub, block in office.blocks().items():
            assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
            assert office.machines[hub].rounds.final()[0] == result.round
            shared = office.machines[hub].rounds.models()
            assert len(shared) == (2 if config.federation.share_model else 1)
            for other, named in shared.items():
                assert largest_difference(named, result.blocks[other.removeprefix("hub.")]) < 1e-10
        # Clients are told why.
        assert {one.reason for one in office.sent if isinstance(one, Stop)} == {result.reason}
        with_scores = [scores is not None for scores in office.test_scores.values()]
        assert any(with_scores) == (config.evaluate.keep == "last" and config.evaluate.holdout > 0)


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["best", "overlap", "hub momentum"])
@pytest.mark.parametrize("after", [2, 8])
def test_a_hub_that_comes_back_continues_counting_bit_for_bit(name, after, tmp_path):
    """From the checkpoint of a round before the best one, and from one while patience is running out."""
    config = config_of(name)
    data = shards(plan(config))
    whole = InProcess(config, data).run()
    last = whole.history["hub.lab"][-1].round
    broken = InProcess(config, data)
    broken.start()
    while "hub.lab" not in broken.states or broken.states["hub.lab"].round < max(1, last - after):
        broken.deliver()
    Checkpoints(tmp_path, "hub.lab").save(broken.states["hub.lab"])
    state = Checkpoints(tmp_path, "hub.lab").newest
    assert state.best is not None
    assert state.candidates
    lost = broken.history["hub.lab"]
    broken.history["hub.lab"] = [one for one in lost if one.round < state.round and one.round not in state.unrecorded]
    broken.come_back("hub.lab", state)
    assert {end.reason for end in broken.ends.values()} == {end.reason for end in whole.ends.values()}
    for hub in whole.blocks():
        assert largest_difference(whole.blocks()[hub], broken.blocks()[hub]) == 0
        assert [r.to_json() for r in broken.history[hub]] == [r.to_json() for r in whole.history[hub]]


@pytest.mark.parametrize("keep", ["last", "best"])
def test_hubs_name_a_run_that_made_its_model_worse_as_the_simulation_does(keep, tmp_path):
    """Also a hub that comes back in the middle: its checkpoint has what the verdict needs."""
    config = with_keys(RIDGE, train={"step_size": 1.0}, evaluate={"keep": keep})
    planned = plan(config)
    result = train(
        *(planned.federation, planned.blocks, planned.objective, planned.settings),
        **{"rounds": 6, "evaluate_every": 2, "keep": keep, "quiet": True},
    )
    assert (result.status, result.round) == ("diverged", 6 if keep == "last" else 0)
    assert [one.worse_than for one in result.history] == ["", "start", "start", "start"]
    office = InProcess(config, shards(planned))
    office.start()
    while "hub.lab" not in office.states or office.states["hub.lab"].round < 3:
        office.deliver()
    Checkpoints(tmp_path, "hub.lab").save(office.states["hub.lab"])
    state = Checkpoints(tmp_path, "hub.lab").newest
    office.history["hub.lab"] = [one for one in office.history["hub.lab"] if one.round < state.round]
    office.come_back("hub.lab", state)
    assert {(end.status, end.reason) for end in office.ends.values()} == {("diverged", result.reason)}
    for history in office.history.values():
        assert [one.worse_than for one in history] == [one.worse_than for one in result.history]
