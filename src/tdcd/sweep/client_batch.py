"""Runs of any blocks in one compiled program: :mod:`tdcd.program`, mapped over runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.devices import Devices
from tdcd.objective import Tree
from tdcd.placement import Placement, Placer
from tdcd.program import Program, SiloData, one_round
from tdcd.run import Plan
from tdcd.sweep.together import Together, TracedObjective, with_room


class ClientBatch:
    """Every client's rows are in an array of their own, padded to those of the fullest client of all runs."""

    def __init__(self, plans: Sequence[Plan], every: int) -> None:
        """Take what :func:`tdcd.sweep.batch.batch_of` takes."""
        self._runs = runs = Together(plans)
        silos = range(runs.federation.num_silos)
        self._placers = [
            [Placer(plan.federation.silos[silo].owner(), runs.batch_size) for plan in plans] for silo in silos
        ]
        padded = sum(placers[0].num_clients * placers[0].usual for placers in self._placers)
        self._rounds = runs.rounds_a_call(every, 4 * (3 + padded // runs.batch_size))
        samples = runs.federation.num_samples
        self._features = [jnp.asarray(silo.features) for silo in runs.federation.silos]
        self._labels = jnp.asarray(runs.labels)
        self._held = [jnp.asarray(runs.held(silo)) for silo in silos]
        self._shares = [held / samples for held in self._held]
        self._program = Program(
            blocks=plans[0].blocks,
            objective=runs.objective,
            gradient=runs.settings.gradient,
            steps=runs.settings.local_steps,
            # Mapped over runs, every run would work on all prefixes rather than on one.
            prefixes=((),) * len(silos),
            in_turn=False,
            unroll=1,
            num_samples=samples,
            devices=Devices(),
        )

    def advance(self, hub_blocks: list[Tree], first_round: int, num_rounds: int) -> list[Tree]:
        """See :meth:`tdcd.sweep.batch.Batch.advance`."""
        runs, end = self._runs, first_round + num_rounds
        while first_round < end:
            ids = runs.ids(range(first_round, min(end, first_round + self._rounds)))
            placements = self._place(ids)
            done = placements[0].counts.shape[1]
            differing = _Differing(
                hub_blocks,
                self._shares,
                self._held,
                with_room(ids[:, :done], self._rounds),
                [Placement(*(with_room(part, self._rounds) for part in placement)) for placement in placements],
                runs.step_sizes,
                runs.l2,
            )
            hub_blocks = _run_rounds(differing, self._features, self._labels, done, program=self._program)
            first_round += done
        return hub_blocks

    def _place(self, ids: NDArray[np.int32]) -> list[Placement]:
        """Each silo's placement of the first rounds, as many as need the same paddings; all runs get the widest."""
        counts = [[p.count(own) for p, own in zip(placers, ids, strict=True)] for placers in self._placers]
        silos = list(zip(self._placers, counts, strict=True))
        levels = np.max([p.levels(count) for silo in silos for p, count in zip(*silo, strict=True)], axis=0)
        same = levels == levels[0]
        done = len(same) if same.all() else int(np.argmin(same))
        placements = []
        for placers, count in silos:
            width = max(placer.padding.width(int(levels[0])) for placer in placers)
            runs = zip(placers, ids[:, :done], count, strict=True)
            placed = [placer.place(own, each[:done], width) for placer, own, each in runs]
            placements.append(Placement(*(np.stack(parts) for parts in zip(*placed, strict=True))))
        return placements


class _Differing(NamedTuple):
    """What is another for every run."""

    hub_blocks: list[Tree]
    shares: list[Array]
    held: list[Array]
    ids: Array
    placements: list[Placement]
    step_size: Array
    l2: Array


@partial(jax.jit, static_argnames=("program",))
def _run_rounds(
    runs: _Differing, features: list[Array], labels: Array, num_rounds: Array, *, program: Program
) -> list[Tree]:
    """The hub blocks ``[S, ...]`` after rounds 0 .. ``num_rounds`` - 1."""

    def one(run: _Differing) -> list[Tree]:
        own = replace(program, objective=TracedObjective(program.objective.loss, run.l2))
        silos = [SiloData(*silo) for silo in zip(features, run.shares, run.held, strict=True)]

        def body(index: Array, hub_blocks: list[Tree]) -> list[Tree]:
            placements = [Placement(*(part[index] for part in placement)) for placement in run.placements]
            return one_round(hub_blocks, silos, labels, run.ids[index], placements, run.step_size, program=own)

        advanced: list[Tree] = jax.lax.fori_loop(0, num_rounds, body, run.hub_blocks)
        return advanced

    advanced: list[Tree] = jax.vmap(one)(runs)
    return advanced
