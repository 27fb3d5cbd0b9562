"""``train.draws``: a run that was stored before there was a choice keeps drawing from the stream."""

import pytest

from tdcd.config import ConfigError, check_config
from tdcd.config.reading import stored_config
from tdcd.config.resolve import settings_of
from tdcd.records.manifest import schedule_digest, schedule_of

pytestmark = pytest.mark.quick

BASE = {"data": {"source": "diabetes"}, "train": {"batch_size": 8, "step_size": 0.1}}


def test_the_choice_reaches_the_settings():
    assert settings_of(check_config(BASE)).draws == "auto"
    chosen = {**BASE, "train": {**BASE["train"], "draws": "permutation"}}
    assert settings_of(check_config(chosen)).draws == "permutation"
    with pytest.raises(ConfigError, match="draws"):
        check_config({**BASE, "train": {**BASE["train"], "draws": "lottery"}})


def test_what_was_stored_without_the_choice_draws_from_the_stream():
    assert stored_config(BASE, "config.toml").train.draws == "stream"
    kept = check_config(BASE).model_dump()
    assert stored_config(kept, "config.toml").train.draws == "auto"


def test_a_manifest_says_how_was_drawn_and_older_ones_mean_the_stream():
    settings = settings_of(check_config(BASE))
    small, large = schedule_of(settings, 1000), schedule_of(settings, 2**24)
    assert (small["draws"], large["draws"]) == ("stream", "permutation")
    assert schedule_digest({key: value for key, value in small.items() if key != "draws"}) == small["digest"]
    assert schedule_digest({key: value for key, value in large.items() if key != "draws"}) != large["digest"]
