"""A hub's block, what its update remembers, and what becomes of both when the clients have taken their steps."""

from collections.abc import Sequence

from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.evaluations import Evaluations
from tdcd.runtime.protocol.exchange import Exchange
from tdcd.runtime.protocol.instructions import State
from tdcd.runtime.protocol.messages import Block, Diverged
from tdcd.runtime.protocol.structure import Arrays, Message, arrays_of
from tdcd.runtime.protocol.taking import are_finite


class HubBlock:
    """The block that a silo's rounds begin with; that of a slow silo moves when its period is over."""

    def __init__(self, compute: HubCompute, restored: State | None) -> None:
        """Before round 0, or as it was saved."""
        self._compute = compute
        self.block: Tree = compute.start if restored is None else compute.tree(restored.block)
        self._memory: Tree = compute.memory if restored is None else compute.remembered(restored.memory)
        self._moved: tuple[Tree, Tree] | None = None
        self.failed = ""
        """What stopped being finite, such as the block of a client."""
        self.failed_in = 0
        """The last round whose local steps everybody began."""

    def step(self, round_index: int, answers: Sequence[Message | None]) -> None:
        """Take the clients' blocks after their local steps; None of those that the hub goes on without."""
        diverged = [answer.sender for answer in answers if isinstance(answer, Diverged)]
        if diverged:
            self.fail(f"the block of {diverged[0]}", round_index)
            return
        blocks = [arrays_of(answer.block) if isinstance(answer, Block) else None for answer in answers]
        average = self._compute.average(round_index, self.block, blocks)
        moved = self._compute.next_block(self.block, average, self._memory)
        if not are_finite(named_leaves(moved[0]).values()):
            self.fail("the block of the hub", round_index)
            return
        self._moved = moved

    def fail(self, what: str, round_index: int) -> None:
        """Something is not finite, in the local steps of a round or before those of the next."""
        self.failed, self.failed_in = what, round_index

    def move(self) -> None:
        """What the steps gave is the block from now on."""
        if self._moved is not None:
            (self.block, self._memory), self._moved = self._moved, None

    @property
    def arrays(self) -> Arrays:
        """The block's arrays by name."""
        return named_leaves(self.block)

    def state(self, run: str, round_index: int, exchange: Exchange, evaluations: Evaluations) -> State:
        """All that the hub needs to go on from the start of a round."""
        return State(
            run,
            round_index,
            self.arrays,
            exchange.outbox,
            dict(exchange.digests),
            evaluations.recorded,
            memory=named_leaves(self._memory),
            unrecorded=tuple(evaluations.waiting),
            best=evaluations.candidates.best,
            courses=evaluations.candidates.courses,
            candidates=evaluations.candidates.arrays,
        )
