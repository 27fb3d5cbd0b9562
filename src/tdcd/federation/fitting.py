"""Whether blocks fit the silos that they are for."""

from collections.abc import Sequence

from tdcd.blocks.base import Block
from tdcd.blocks.start import start_block
from tdcd.core.combine import SUM, Combine
from tdcd.core.objective import Tree
from tdcd.core.settings import Settings
from tdcd.federation.silos import Federation


def start_fitting(
    federation: Federation, blocks: Sequence[Block], num_outputs: int, settings: Settings, combine: Combine = SUM
) -> list[Tree]:
    """The hub blocks before round 0. A block that does not fit its silo's samples is refused by the silo's name."""
    return [
        start_block(block, settings, index, silo.feature_shape, num_outputs, silo.name, combine)
        for index, (silo, block) in enumerate(zip(federation.silos, blocks, strict=True))
    ]
