"""Poisson, Huber and a loss of the user's own in the real federation: it gives the simulation's history."""

from pathlib import Path

import jax
import numpy as np
import pytest

from support.in_process import InProcess, largest_difference
from support.simulated import RIDGE, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.machine.handshake import check_outputs
from tdcd.runtime.messages.messages import Outputs
from tdcd.runtime.messages.validation import take_loss
from tdcd.runtime.messages.wire import RejectedMessage

EXAMPLES = str(Path(__file__).parents[2] / "examples")
OWN = {"loss": "own_loss:Quantile", "folder": EXAMPLES}
MODELS = {
    "poisson": ({"loss": "poisson"}, {"step_size": 0.0005}, {"deviance", "d2", "mae"}),
    "huber": ({"loss": "huber", "huber_delta": 0.7}, {}, {"rmse", "r2"}),
    "own": (OWN, {}, {"below"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_same_history_and_blocks_as_the_simulation(name):
    model, keys, figures = MODELS[name]
    config = with_keys(RIDGE, model=model, train=keys)
    planned, result = simulated(config)
    assert planned.config.model.loss == model["loss"]
    office = InProcess(config, shards(planned), seed=2).run()
    assert not office.refused
    for history in office.history.values():
        for ours, theirs in zip(history, result.history, strict=True):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)
            assert set(ours.metrics["test"]) == figures
            for split in ours.metrics:
                assert ours.metrics[split] == pytest.approx(theirs.metrics[split], rel=1e-9)
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    assert result.history[-1].train_loss < result.history[0].train_loss


GAUSSIAN = """
from dataclasses import dataclass

import jax.numpy as jnp
from tdcd import Loss


@dataclass(frozen=True)
class Gaussian(Loss):
    def losses(self, scores, labels):
        mean, log_scale = scores[..., 0], scores[..., 1]
        return log_scale + ((labels - mean) * jnp.exp(-log_scale)) ** 2 / 2

    def num_outputs(self, num_classes):
        return 2
"""


def test_a_loss_says_how_many_outputs_it_needs(tmp_path):
    """Here a mean and a scale of every amount: for real and in a simulation alike."""
    (tmp_path / "gaussian_loss.py").write_text(GAUSSIAN)
    model = {"loss": "gaussian_loss:Gaussian", "folder": str(tmp_path)}
    config = with_keys(RIDGE, model=model, train={"step_size": 0.01, "rounds": 4})
    planned, result = simulated(config)
    assert {block.shape[-1] for block in map(np.asarray, jax.tree.leaves(result.blocks))} == {2}
    office = InProcess(config, shards(planned), seed=2).run()
    for history in office.history.values():
        assert [one.bytes for one in history] == [one.bytes for one in result.history]
        losses = [one.train_loss for one in result.history]
        assert [one.train_loss for one in history] == pytest.approx(losses, rel=1e-10)
    assert losses[-1] < losses[0]
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"loss": "nowhere:Loss"}, "model.loss = 'nowhere:Loss': there is no nowhere.py in"),
        ({"loss": "math:pi"}, "model.loss = 'math:pi': its type is float, not a tdcd.Loss"),
        ({"loss": "math:nothing"}, "model.loss = 'math:nothing': .*no attribute 'nothing'"),
    ],
)
def test_a_party_without_the_loss_does_not_start(model, text):
    with pytest.raises(ConfigError, match=text):
        Job(with_keys(RIDGE, model=model))


def test_labels_at_one_silo_are_refused_for_a_loss_without_change(tmp_path):
    (tmp_path / "quartic_loss.py").write_text(
        "from tdcd import Loss\n\n\nclass Quartic(Loss):\n    def losses(self, scores, labels):\n"
        "        return (scores[..., 0] - labels) ** 4\n"
    )
    model = {"loss": "quartic_loss:Quartic", "folder": str(tmp_path)}
    with pytest.raises(
        ConfigError, match=r"federation.labels = 'clinic': the \S+Quartic loss has no `change` to follow"
    ):
        Job(with_keys(RIDGE, model=model, federation={"labels": "clinic"}))


def test_no_party_imports_a_module_that_another_one_names():
    config = with_keys(RIDGE, federation={"labels": "clinic"})
    with pytest.raises(
        RejectedMessage, match=r"'loss' is not known here: model.loss = None: it does not name 'os:abort'"
    ):
        take_loss("os:abort", config.model)
    told = type("Said", (), {"sender": "hub.clinic", "outputs": Outputs("os:abort", 1)})
    with pytest.raises(IncompatibleParties, match="it does not name 'os:abort', which another party trains with"):
        check_outputs(told, Job(config), is_label_hub=True)
