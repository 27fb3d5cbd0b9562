"""Crashes and bad links under a head, noise from a private stream, memories of clients, clients that are drawn,
samples that some silos lack, rows of many samples, and steps from mixtures.
"""

import pytest
from lab import ALL_SAMPLES, MANY, MIXTURES, ROUGH, Lab, in_mode, prepared, reference_of

MEMBERS = ["head", "pairs", "client memory", "noise", "drawn clients", *ALL_SAMPLES, MANY, *MIXTURES]


@pytest.fixture(scope="module", params=MEMBERS)
def member(request, tmp_path_factory):
    """Config, rows, and the history of the run to which nothing happened."""
    config, data = prepared(**in_mode(request.param))
    return config, data, reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")[0]


@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_bad_links(member, tmp_path, seed):
    config, data, history = member
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(history)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] > 0
