"""How long the steps of a hub's optimiser are by default."""

import pytest

from tdcd.config.members import variant_of
from tdcd.config.schema import Config, TrainSection
from tdcd.core.family.automatic import automatic
from tdcd.core.settings import ADAM_STEP, Settings
from tdcd.core.variant import Variant

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("step_size", ["auto", 0.1])
def test_adam_steps_as_far_as_it_does_by_default(step_size):
    """Whoever names the optimiser that automatic steps choose gets its step, too."""
    named = variant_of(Config.model_validate({"train": {"hub_optimizer": "adam", "step_size": step_size}}))
    _, chosen = automatic(Settings(), Variant(), is_scalable=False, num_silos=2)
    assert named.hub_update.step_size == chosen.hub_update.update.step_size == ADAM_STEP


def test_the_step_follows_the_optimiser_unless_it_is_given():
    steps = [
        TrainSection.model_validate(keys).hub_step_size
        for keys in (
            {},
            {"hub_optimizer": "momentum"},
            {"hub_optimizer": "adam"},
            {"hub_optimizer": "adam", "hub_step_size": "auto"},
            {"hub_optimizer": "adam", "hub_step_size": 1.0},
        )
    ]
    assert steps == [1.0, 1.0, ADAM_STEP, ADAM_STEP, 1.0]
