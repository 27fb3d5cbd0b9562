"""The member of the family that ``step_size = "auto"`` chooses, and the settings that go with it.

Linear blocks
    One local step per round on every sample, and :class:`~tdcd.core.family.scaled.Scaled` steps at the hubs. With
    steps in each silo's own units more local steps win nothing, and clients that take one do not drift apart: a round
    is a step of accelerated gradient descent on the whole objective, for any number of clients.
Other blocks, heads, and losses without a bound of their curvature
    Plain local steps, and Adam at the hubs on what these changed. An optimiser at the clients would start over in every
    round.

In both cases the hubs' steps are :class:`~tdcd.core.family.steered.Steered`.
"""

from dataclasses import replace

from tdcd.core.codecs.codec import WholeBlock
from tdcd.core.family.scaled import Scaled
from tdcd.core.family.steered import Steered
from tdcd.core.losses import Loss
from tdcd.core.settings import ADAM_STEP, AUTO, LOCAL_STEPS, Settings
from tdcd.core.update import Average, HubUpdate, Sgd
from tdcd.core.variant import Variant

FIRST_STEP, MARGIN = 1.0, 0.5
"""Of scaled steps: the first one, over N, since with momentum they are stable up to 1.36 where all silos know the same;
and the longest one over the curvature that a hub measures."""
FAR = 1024.0
"""The step of a client's that takes only one and sends its block as it is: a hub scales it anyway, and of a long one it
learns the gradient to more digits."""
REACH = 0.01
"""How far several local steps go along a gradient before a hub scales it: not far, so that it is the one of the round's
start."""
MOST_SAMPLES = 1 << 20
"""Of a minibatch of scaled steps; up to so many, every sample is in each."""
ENCRYPTED_SAMPLES = 4096
"""The same where slopes are encrypted: with more samples, a ciphertext has room for fewer columns."""
NETWORK_STEP, ENSEMBLE_STEP = 0.05, 0.2
"""The clients' steps of other blocks, and of ensembles: networks on piecewise columns are stable up to about twice as
much."""
NETWORK_BATCH = 256
"""Of other blocks: the samples of a minibatch."""
PLAIN_STEPS = (
    "step_size = 'auto' goes with plain local steps of the clients; give step_size a number, or leave this out"
)


def automatic_l2(loss: Loss, num_samples: int) -> float:
    """Lambda of linear blocks: a tenth of a sample's weight for amounts, and a whole one for classes, which linear
    blocks may separate.

    As penalties of scikit-learn these are Ridge(alpha=0.1) and LogisticRegression(C=1).
    """
    return (0.1 if loss.target == "amount" else 1.0) / num_samples


def automatic(
    settings: Settings, variant: Variant, *, is_scalable: bool, num_silos: int, are_ensembles: bool = False
) -> tuple[Settings, Variant]:
    """The settings and the member of the family, with all that was left open chosen but the number of samples.

    Args:
        is_scalable: whether all blocks are linear, scores are sums, and the curvature of the loss has a bound.
        are_ensembles: whether all blocks are ensembles.

    >>> settings, variant = automatic(Settings(), Variant(), is_scalable=True, num_silos=2)
    >>> settings.local_steps, settings.step_size, variant.hub_update.update.step_size
    (1, 1024.0, 0.5)
    """
    if not settings.is_automatic:
        return settings, variant
    if type(variant.update) is not Sgd:
        raise ValueError(f"update = {type(variant.update).__name__}: {PLAIN_STEPS}")
    steps = settings.local_steps
    if is_scalable:
        steps = 1 if steps == AUTO else steps
        sends_numbers = type(variant.block_exchange) is WholeBlock and variant.encrypted is None
        is_scaled = type(variant.hub_update) is Average
        step_size = REACH / steps if steps > 1 else FAR if sends_numbers and is_scaled else 1.0
        batch = MOST_SAMPLES if variant.encrypted is None else ENCRYPTED_SAMPLES
        # Blocks that are D rounds old overshoot as if there were so many more.
        late = 1 + variant.timing.depth
        update: HubUpdate = Scaled(FIRST_STEP / (num_silos * late), step_size * steps, margin=MARGIN / late)
    else:
        # Optax is imported only where it is used.
        from tdcd.core.family.optimizers import HubOptimizer, direction  # noqa: PLC0415

        steps, batch = (LOCAL_STEPS if steps == AUTO else steps), NETWORK_BATCH
        step_size = ENSEMBLE_STEP if are_ensembles else NETWORK_STEP
        update = HubOptimizer(direction("adam"), ADAM_STEP)
    chosen = replace(
        settings,
        local_steps=steps,
        step_size=step_size,
        batch_size=batch if settings.batch_size == AUTO else settings.batch_size,
        limits_batch=settings.batch_size == AUTO,
    )
    given = variant.hub_update
    return chosen, replace(variant, hub_update=Steered(update if type(given) is Average else given))
