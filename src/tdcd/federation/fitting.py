"""Whether blocks fit the silos that they are for."""

from collections.abc import Sequence

from tdcd.blocks.base import Block
from tdcd.blocks.start import start_block
from tdcd.core.lazy import jax
from tdcd.core.objective import Tree
from tdcd.core.settings import Settings
from tdcd.federation.silos import Federation, Silo


def start_fitting(federation: Federation, blocks: Sequence[Block], num_outputs: int, settings: Settings) -> list[Tree]:
    """The hub blocks before round 0. A block that does not fit its silo's samples is refused by the silo's name."""
    return [
        _start(silo, block, num_outputs, settings, index)
        for index, (silo, block) in enumerate(zip(federation.silos, blocks, strict=True))
    ]


def _start(silo: Silo, block: Block, num_outputs: int, settings: Settings, index: int) -> Tree:
    shape, kind = silo.feature_shape, type(block).__name__
    started = start_block(block, settings, index, shape, num_outputs, silo.name)
    try:
        with jax.enable_x64(settings.dtype == "float64"):
            samples = jax.ShapeDtypeStruct((2, *shape), settings.dtype)  # type: ignore[no-untyped-call]
            phi = jax.eval_shape(block.phi, started, samples)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"silo '{silo.name}': {kind} does not take samples of shape {shape}: {error}") from error
    if phi.shape != (2, num_outputs):
        raise ValueError(
            f"silo '{silo.name}': {kind} maps 2 samples of shape {shape} to phi of shape {phi.shape}, but the task "
            f"needs (2, {num_outputs}): one row per sample, one score per output"
        )
    return started
