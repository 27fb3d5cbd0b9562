"""``tdcd plan --epsilon``: noise, rounds and figures to expect, from trainings with that noise."""

import re
import tomllib

import pytest

from support.command import tdcd
from tdcd.config import check_config
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.planning import plan_noise

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 2},
    "model": {"block": "linear"},
    "train": {"rounds": 3, "step_size": 0.05, "minibatches": "full", "local_steps": 2},
}


def test_every_choice_has_the_noise_of_its_rounds_and_with_little_noise_the_loss_is_that_without():
    planned = plan_noise(check_config(KEYS | {"exchange": {"epsilon": 1.0, "clip": 100.0}}), 1e7, seconds=3600)
    assert [(choice.rounds, choice.clip) for choice in planned.choices] == [(3, 100.0), (3, 30.0), (3, 10.0)]
    for choice in planned.choices:
        # Two evaluations: before training, and of the last round.
        assert choice.deviation == GaussianNoise.of_epsilon(1e7, 1e-5, choice.clip, 5).deviation
    assert planned.best.loss == min(choice.loss for choice in planned.choices)
    assert planned.best.loss == pytest.approx(planned.plain.loss, rel=0.02)
    assert planned.plain.deviation is None


def test_the_command_says_what_to_write(tmp_path):
    text = '[data]\nsource = "diabetes"\n[model]\nblock = "linear"\n[train]\nrounds = 3\n'
    (tmp_path / "small.toml").write_text(text)
    done = tdcd("plan", "small.toml", "--epsilon", "8", "--seconds", "3600", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "Noise on phi for epsilon = 8, delta = 1e-05" in done.stdout
    written = done.stdout[done.stdout.index("[train]") :]
    assert re.search(r"\[exchange\]\nepsilon = 8\ndelta = 1e-05\nclip = (1|0.3|0.1)\n", written)
    config = check_config({"data": {"source": "diabetes"}, "model": {"block": "linear"}} | tomllib.loads(written))
    assert (config.exchange.epsilon, config.train.rounds, config.evaluate.every) == (8.0, 3, 3)
