"""Random training problems of a given shape, solved by the simulation and by the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import numpy as np
from hypothesis import Phase, settings
from numpy.typing import NDArray

from support import oracle
from tdcd.blocks import Block, Ensemble, Linear, Mlp
from tdcd.blocks.base import with_head
from tdcd.core.execution import Execution
from tdcd.core.family.heads import Pairs
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import Round
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.partition import (
    Rows,
    contiguous_rows,
    dirichlet_rows,
    equal_sizes,
    proportional_sizes,
    shuffled_rows,
)
from tdcd.federation.silos import Federation, Silo
from tdcd.simulation.engines.base import State
from tdcd.simulation.simulate import Simulation

Arrays = list[list[NDArray[Any]]]
SPLITS = ("aligned", "shuffled", "unequal", "dirichlet")
NUM_CLASSES = 3
ENGINES = ("clients", "grouped", "flat")


def engines_of(loss: str) -> tuple[str, ...]:
    """The engines that run linear blocks with this loss; other blocks are for ``"clients"``."""
    return ENGINES[:2] if loss == "softmax" else ENGINES


def over_engines(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Every case of linear blocks, which begins with its loss, with every engine that runs it in front."""
    return [(engine, *case) for case in cases for engine in engines_of(case[0])]


def examples(count: int) -> settings:
    """So many examples; a failing one is not simplified, since smaller seeds are no simpler and shapes compile."""
    return settings(max_examples=count, phases=[Phase.explicit, Phase.generate])


@dataclass(frozen=True)
class Shape:
    """What fixes the shapes of arrays, and so what compiles anew: values and row splits may vary under it.

    With at least B times as many samples as a silo has clients, some client holds a minibatch's worth of rows, and
    rows are always padded to B.
    """

    clients: tuple[int, ...]
    columns: tuple[int, ...]
    num_samples: int = 30
    batch_size: int = 6
    local_steps: int = 3
    blocks: tuple[Block, ...] = ()

    def models(self) -> tuple[Block, ...]:
        return self.blocks or (Linear(),) * len(self.clients)


@dataclass(frozen=True)
class Problem:
    """A federation, a model, a start and the settings."""

    federation: Federation
    blocks: tuple[Block, ...]
    objective: Objective
    settings: Settings
    start: list[Tree] = field(repr=False)

    @classmethod
    def draw(
        cls,
        shape: Shape,
        objective: Objective,
        seed: int,
        split: str = "unequal",
        step_size: float = 0.1,
        **changes: Any,
    ) -> Self:
        """Normal features of unit length on average, labels of the loss's kind, and a start away from zero."""
        rng = np.random.default_rng(seed)
        m = shape.num_samples
        labels = {
            "squared": rng.normal(size=m),
            "huber": 2 * rng.normal(size=m),
            "poisson": rng.poisson(1.5, m),
            "logistic": rng.integers(0, 2, m),
            "softmax": np.concatenate([np.arange(NUM_CLASSES), rng.integers(0, NUM_CLASSES, m - NUM_CLASSES)]),
        }[objective.loss]
        silos = [
            Silo(f"silo{j}", rng.normal(size=(m, columns)) / columns**0.5, split_rows(split, labels, clients, rng))
            for j, (clients, columns) in enumerate(zip(shape.clients, shape.columns, strict=True))
        ]
        outputs = NUM_CLASSES if objective.loss == "softmax" else 1
        start = [
            random_block(with_head(block, objective.combine), columns, objective.phi_width(outputs), rng)
            for block, columns in zip(shape.models(), shape.columns, strict=True)
        ]
        chosen = Settings(
            local_steps=shape.local_steps,
            batch_size=shape.batch_size,
            step_size=step_size,
            seed=seed,
            **{"dtype": "float64", **changes},
        )
        return cls(Federation(tuple(silos), labels), shape.models(), objective, chosen, start)

    def with_settings(self, **changes: Any) -> Self:
        return replace(self, settings=replace(self.settings, **changes))

    def simulation(self, engine: str = "auto", keep: str = "auto", variant: Variant | None = None) -> Simulation:
        execution = Execution(keep=keep, engine=engine)
        return Simulation(self.federation, self.blocks, self.objective, self.settings, execution, variant)

    def simulate(self, num_rounds: int, engine: str = "auto", variant: Variant | None = None) -> Arrays:
        """The hub blocks after ``num_rounds`` rounds of the package's simulation."""
        start = jax.tree.map(lambda leaf: np.asarray(leaf, self.settings.dtype), self.start)
        simulation = self.simulation(engine, variant=variant)
        return arrays(simulation.advance(simulation.state_of(start), 0, num_rounds))

    def solve(self, num_rounds: int, variation: oracle.Variation | None = None, flows: Round | None = None) -> Arrays:
        """The same by the oracle; with other flows than those of Algorithm 1, if any are given."""
        chosen = self.settings
        return oracle.train(
            self.silos(),
            self.federation.labels,
            arrays(self.start),
            loss=self.objective.loss,
            l2=self.objective.l2,
            num_rounds=num_rounds,
            local_steps=chosen.local_steps,
            batch_size=chosen.batch_size,
            step_size=chosen.step_size,
            minibatches=chosen.minibatches,
            draws=chosen.draws,
            gradient=chosen.gradient,
            seed=chosen.seed,
            variation=variation,
            weights=self.federation.weights,
            flows=flows,
        )

    def silos(self) -> list[oracle.Silo]:
        """The silos in the oracle's terms."""
        kinds = {Linear: oracle.Linear(), Mlp: oracle.Mlp(), Ensemble: oracle.Ensemble()}
        models: list[oracle.Model] = [kinds[type(block)] for block in self.blocks]
        if isinstance(head := self.objective.combine, Pairs):
            models = [oracle.Squared(model, head.rank) for model in models]
        return [
            oracle.Silo(model, np.asarray(silo.features, np.float64), [[*map(int, rows)] for rows in silo.rows])
            for model, silo in zip(models, self.federation.silos, strict=True)
        ]


def split_rows(split: str, labels: NDArray[Any], num_clients: int, rng: np.random.Generator) -> Rows:
    """Rows over clients: ``"aligned"`` is alike in all silos, the others differ from silo to silo."""
    if split == "aligned":
        return contiguous_rows(len(labels), equal_sizes(len(labels), num_clients))
    if split == "shuffled":
        return shuffled_rows(len(labels), equal_sizes(len(labels), num_clients), rng)
    if split == "dirichlet":
        return dirichlet_rows(labels, num_clients, 1.0, rng)
    sizes = rng.permutation([2**client for client in range(num_clients)])
    return shuffled_rows(len(labels), proportional_sizes(len(labels), sizes.tolist()), rng)


def random_block(block: Block, columns: int, outputs: int, rng: np.random.Generator) -> Tree:
    """Normal numbers in the shapes of the block's own start."""
    shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), (columns,), outputs))
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / 2, shapes)


def arrays(blocks: Sequence[Tree] | State) -> Arrays:
    """Blocks, or those of a simulation's state, as the oracle has them: a list of arrays each."""
    if isinstance(blocks, State):
        blocks = blocks.blocks
    return [[np.asarray(leaf) for leaf in jax.tree.leaves(block)] for block in blocks]


def distance(one: Arrays, other: Arrays) -> float:
    """The largest difference of any two numbers."""
    pairs = [pair for blocks in zip(one, other, strict=True) for pair in zip(*blocks, strict=True)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)
