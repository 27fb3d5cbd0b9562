"""Crashes and bad links while patience runs out: the run ends in the same round, with the same model kept."""

import pytest
from lab import ORDERLY, ROUGH, Lab, in_mode, prepared

from tdcd.records.model_file import read_block

MODES = ["patience", "patience, overlap 3, period 4"]


def kept(folder):
    """The arrays and the round of every hub's model, in all hubs' folders."""
    found = {}
    for path in sorted(folder.rglob("model/*.safetensors")):
        tensors, facts = read_block(path)
        arrays = {name: tensor.tobytes() for name, tensor in tensors.items()}
        found[str(path.relative_to(folder))] = facts["round"], arrays
    return found


@pytest.fixture(scope="module", params=MODES)
def quiet(request, tmp_path_factory):
    """Config, rows, history and models of the run to which nothing happened, and the failpoints on its way."""
    config, data = prepared(**in_mode(request.param), federation={"share_model": True})
    folder = tmp_path_factory.mktemp("quiet")
    lab = Lab(config, data, folder, 0, ORDERLY).run()
    return config, data, lab.history("hub.lab"), kept(folder), lab.failpoints


def test_the_run_ends_early(quiet):
    config, _, history, models, _ = quiet
    assert 5 < len(history) < config.train.rounds // config.evaluate.every
    assert len(models) == 4
    assert len({facts for facts, _ in models.values()}) == 1


@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_bad_links(quiet, tmp_path, seed):
    config, data, history, models, _ = quiet
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(history)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] > 0
    assert kept(tmp_path) == models


@pytest.mark.parametrize("quiet", MODES[1:], indirect=True)
def test_a_hub_that_crashes_at_the_end(quiet, tmp_path):
    """At the last line, at the last state, while models are shared, and when the folder is made complete."""
    config, data, history, models, failpoints = quiet
    ends = ("append.after", "save.half", "send.model.before", "send.model.after", "finish.before", "finish.after")
    for place, hits in [(place, failpoints[place]) for place in (f"hub {end}" for end in ends)]:
        lab = Lab(config, data, tmp_path / place, 0)
        lab.crash_at = place, hits
        lab.run(history)
        assert set(lab.outcomes.values()) == {"finished"}, place
        assert kept(tmp_path / place) == models
