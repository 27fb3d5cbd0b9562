"""What is sent while a federation trains, kept for some of its samples: the raw material of all transcripts."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd.audit.modes import Mode, randomised
from tdcd.config.resolve import Plan
from tdcd.core import algorithm
from tdcd.core.codecs.codec import (
    BETWEEN_HUBS,
    TO_CLIENTS,
    TO_HUB,
    Codec,
    Identity,
    Sending,
    encode_scores,
    is_identity,
    seed_words,
)
from tdcd.core.codecs.encrypted import MODULUS_BITS, EncryptedSums
from tdcd.core.codecs.noise import noise_of
from tdcd.core.losses import metrics
from tdcd.core.objective import Tree
from tdcd.core.randomized import Response
from tdcd.core.round import LinkClass
from tdcd.core.settings import draws_of
from tdcd.runtime.compute.encryption import SlopeKey
from tdcd.simulation.engines.base import State
from tdcd.simulation.simulate import Simulation
from tdcd.training.train import simulate

Floats = NDArray[np.float64]
FLOAT_NOISE = 2e-7
"""Rounding of phi in single precision, relative to its largest number."""


UTILITIES = ("auc", "r2", "d2")
"""What a model is worth, where 1 is perfect: the first of these that its loss has."""


class Moment(NamedTuple):
    """When phi is sent: for a round's minibatches, or for all samples at an evaluation."""

    round: int
    evaluation: bool


@dataclass(frozen=True, eq=False)
class Recording:
    """What was sent of R samples at T moments; C numbers each, nan where a sample was not part of it."""

    rows: NDArray[np.int64]
    """``[R]``: the samples."""
    moments: list[Moment]
    blocks: list[list[Tree]]
    """Per silo and moment: the block that phi comes from."""
    to_hub: list[Floats]
    """Per silo ``[R, T, C]``: phi as its own hub gets it from its clients."""
    between: list[Floats]
    """Per silo: phi as the other hubs get it."""
    to_clients: list[Floats]
    """Per silo: what its hub passes on to its clients: the others' phi, or slopes and what is sent with them."""
    noise: list[Floats]
    """Per silo ``[T]``: the standard deviation of what rounding does to its phi inside the silo."""
    noise_between: list[Floats]
    """Per silo ``[T]``: of what rounding, and noise of the hub's own, do to a number that it sends the others."""
    times: Floats
    """``[R, T]``: how often phi of a sample was sent at a moment; what is kept is the mean."""
    labels: NDArray[Any]
    """``[R]``: the labels that were trained with."""
    response: Response
    """How they were randomised, which everybody knows."""
    minibatches: list[NDArray[np.int64]]
    """Of every round: the samples ``[E * B]``."""
    gradients: list[list[Floats]]
    """Per silo and round ``[D, C]``: what its hub gets where slopes are encrypted; nothing where they are not."""
    train_losses: Floats
    """Losses of the R samples at the end, by the true labels."""
    test_losses: Floats
    """Losses of the held-out samples; empty if there are none."""
    utility: float | None
    """AUC, R2 or D2 of the model of the last round on held-out samples; None if there are none, or if it is none of
    these.
    """


def record(planned: Plan, mode: Mode, rounds: int, rows: NDArray[np.int64]) -> Recording:
    """Train ``rounds`` rounds in a mode, and keep what is sent of ``rows``."""
    federation = planned.federation
    labels = federation.labels
    if mode.epsilon is not None:
        labels = randomised(labels, mode.epsilon, planned.settings.seed)
    trained = planned._replace(
        federation=replace(federation, labels=labels),
        objective=replace(planned.objective, label_epsilon=mode.epsilon),
        variant=mode.variant(planned.variant),
        execution=replace(planned.execution, engine="auto"),
    )
    recorder = _Recorder(trained, simulate(trained), rows)
    return recorder.run(rounds, federation.labels)


class _Recorder:
    def __init__(self, planned: Plan, simulation: Simulation, rows: NDArray[np.int64]) -> None:
        self.planned, self.simulation, self.rows = planned, simulation, rows
        self.federation, self.variant = planned.federation, planned.variant
        self.draws = draws_of(planned.settings, self.federation.num_samples)
        self.owners = [silo.owner() for silo in self.federation.silos]
        self.place = np.full(self.federation.num_samples, -1)
        self.place[rows] = np.arange(len(rows))
        self.phi = [jax.jit(partial(algorithm.phi, apply=block.phi)) for block in planned.blocks]
        self.seed = seed_words(planned.settings.seed)
        self.minibatches: list[NDArray[np.int64]] = []
        self.gradients: list[list[Floats]] = [[] for _ in self.owners]
        self._key: SlopeKey | None = None

    def run(self, rounds: int, true_labels: NDArray[Any]) -> Recording:
        state, moments, past = self.simulation.init(), [], []
        kept: list[list[Any]] = []
        for index in range(rounds):
            past.append(state.blocks)
            ages = [int(self.variant.timing.age(silo, jnp.asarray(index))) for silo in range(len(self.phi))]
            with jax.enable_x64(self.planned.settings.dtype == "float64"):
                if index % self.planned.config.evaluate.every == 0:
                    moments.append(Moment(index, evaluation=True))
                    kept.append(self._evaluated(index, state.blocks))
                moments.append(Moment(index, evaluation=False))
                kept.append(self._exchanged(index, [past[index - age][silo] for silo, age in enumerate(ages)]))
            state = self.simulation.advance(state, index, 1)
        self._refuse_diverged(state)
        blocks, to_hub, between, passed_on, noise, noise_between, times = zip(*kept, strict=True)
        silos = range(len(self.phi))

        def of_each(parts: Any) -> list[Floats]:
            return [np.stack([part[silo] for part in parts], axis=1).astype(np.float64) for silo in silos]

        train, test, utility = self._at_the_end(state, true_labels)
        return Recording(
            self.rows,
            moments,
            [[part[silo] for part in blocks] for silo in silos],
            of_each(to_hub),
            of_each(between),
            of_each(passed_on),
            [np.array([part[silo] for part in noise], np.float64) for silo in silos],
            [np.array([part[silo] for part in noise_between], np.float64) for silo in silos],
            np.stack(times, axis=1).astype(np.float64),
            self.federation.labels[self.rows],
            self.planned.objective.response(self.simulation.num_outputs),
            self.minibatches,
            self.gradients,
            train,
            test,
            utility,
        )

    def _evaluated(self, index: int, blocks: list[Tree]) -> list[Any]:
        """An evaluation: hubs get phi of every sample as it is, or with noise of its hub's; clients get nothing."""
        phis = [np.asarray(self._phi(silo, block, self.rows[None])[0], np.float64) for silo, block in enumerate(blocks)]
        flows = self.simulation.round
        statistic = self.planned.objective.statistic_width(self.simulation.num_outputs)
        nothing = [
            np.full((len(phi), phi.shape[1] if flows.scored_at(silo) == silo else statistic), np.nan)
            for silo, phi in enumerate(phis)
        ]
        sent, rounding = phis, [FLOAT_NOISE * _largest(phi) for phi in phis]
        if (added := noise_of(self.variant.exchange)) is not None:
            dtype = self.planned.settings.dtype
            noisy = [
                encode_scores(added, jnp.asarray(phi, dtype), self._sending(index, silo, phi), "train")
                for silo, phi in enumerate(phis)
            ]
            sent = [np.asarray(phi, np.float64) for phi in noisy]
        return [blocks, phis, sent, nothing, rounding, self._between(rounding), np.ones(len(self.rows))]

    def _exchanged(self, index: int, blocks: list[Tree]) -> list[Any]:
        """A round's minibatches."""
        ids = self.draws(index)
        self.minibatches.append(ids.ravel().astype(np.int64))
        silos = range(len(blocks))
        exact = [self._phi(silo, block, ids) for silo, block in enumerate(blocks)]
        up = [self._per_client(silo, phi, index, ids, TO_HUB) for silo, phi in enumerate(exact)]
        flows, objective = self.simulation.round, self.planned.objective
        codec = flows.codec("phi", "hub_to_hub")
        sent = [_sent(codec, phi, self._sending(index, silo, phi)) for silo, phi in enumerate(up)]
        truth = jnp.asarray(self.federation.labels[ids], objective.label_dtype(self.planned.settings.dtype))
        down = []
        for silo in silos:
            hub = flows.scored_at(silo)
            seen = jnp.asarray(up[hub]), algorithm.sum_others([jnp.asarray(phi) for phi in sent], hub)
            passed = np.asarray(self.variant.knowledge.received(silo, *seen, truth, objective))
            if flows.encrypted is not None and hub != silo:
                self._sum(silo, passed, ids)
                passed = self._encrypted(index, flows.encrypted, passed)
            down.append(self._per_client(silo, passed, index, ids, TO_CLIENTS))
        noise = [self._noise(phi) for phi in exact]
        collected = [[self._collect(phi, ids) for phi in part] for part in (up, sent, down)]
        times = np.bincount(self.place[ids][self.place[ids] >= 0], minlength=len(self.rows))
        return [blocks, *collected, noise, self._between(noise), times]

    def _encrypted(self, index: int, form: EncryptedSums, slopes: NDArray[Any]) -> NDArray[Any]:
        """What the other silos get of slopes: each sample's coefficient of a real ciphertext, from -1/2 to 1/2."""
        if self._key is None:
            # Of the seed: the same audit has the same figures.
            self._key = SlopeKey(self.planned.settings.seed.to_bytes(16, "little"), "audit")
        whole = form.whole(slopes[0].astype(np.float64)).astype(np.int64)
        words = self._key.slopes(index, whole)["slopes"][:, 0, : len(whole)].T
        return words[None] / 2.0 ** MODULUS_BITS[0] - 0.5

    def _sum(self, silo: int, slopes: NDArray[Any], ids: NDArray[Any]) -> None:
        """The gradient of a silo's block, which its hub gets in place of slopes."""
        rows = self.federation.silos[silo].features[ids[0]].reshape(len(ids[0]), -1).astype(np.float64)
        self.gradients[silo].append(rows.T @ slopes[0].astype(np.float64) / len(rows))

    def _noise(self, phi: NDArray[Any]) -> float:
        bits = self.variant.few_bits[0] or 32
        step = 2 / (2**bits - 2) / 12**0.5 if bits < 32 else 0.0
        return max(step, FLOAT_NOISE) * _largest(phi)

    def _between(self, rounding: list[float]) -> list[float]:
        """The deviation of what other hubs get."""
        added = noise_of(self.variant.exchange)
        return rounding if added is None else [max(each, added.deviation) for each in rounding]

    def _phi(self, silo: int, block: Tree, ids: NDArray[Any]) -> NDArray[Any]:
        features = self.federation.silos[silo].features[ids]
        with jax.enable_x64(self.planned.settings.dtype == "float64"):
            return np.asarray(self.phi[silo](block, features.astype(self.planned.settings.dtype)))

    def _sending(self, index: int, silo: int, phi: NDArray[Any], stream: int = BETWEEN_HUBS) -> Sending:
        return Sending(self.seed, index, silo, phi.shape, stream)

    def _per_client(self, silo: int, phi: NDArray[Any], index: int, ids: NDArray[Any], stream: int) -> NDArray[Any]:
        """Phi after it was sent between the clients of a silo and their hub."""
        link: LinkClass = "client_to_hub" if stream == TO_HUB else "hub_to_client"
        exchange = self.simulation.round.codec("phi" if stream == TO_HUB else "received", link, silo, Identity())
        if is_identity(exchange):
            return phi
        flat, received = phi.reshape(-1, phi.shape[-1]), np.empty_like(phi).reshape(-1, phi.shape[-1])
        holder = self.owners[silo][ids].ravel()
        sending = self._sending(index, silo, phi, stream)
        # In NumPy: JAX would compile for every number of rows.
        sending = sending._replace(drawn={stream: np.asarray(sending.dither())})
        for client in range(self.federation.silos[silo].num_clients):
            places = np.flatnonzero(holder == client)
            received[places] = _sent(exchange, flat[places], sending._replace(places=places))
        return received.reshape(phi.shape)

    def _collect(self, phi: NDArray[Any], ids: NDArray[Any]) -> Floats:
        """``[R, C]``: a sample that stands in several minibatches was sent several times, which averages noise out."""
        places = self.place[ids].ravel()
        wanted = places >= 0
        summed = np.zeros((len(self.rows), phi.shape[-1]))
        np.add.at(summed, places[wanted], phi.reshape(-1, phi.shape[-1])[wanted])
        times = np.bincount(places[wanted], minlength=len(self.rows))[:, None]
        means: Floats = np.divide(summed, times, out=np.full_like(summed, np.nan), where=times > 0)
        return means

    def _at_the_end(self, state: State, true_labels: NDArray[Any]) -> tuple[Floats, Floats, float | None]:
        """Losses of training samples and of held-out ones, and what the model is worth on these."""
        silos, objective = self.federation.silos, replace(self.planned.objective, label_epsilon=None)

        def losses(scores: NDArray[Any], labels: NDArray[Any]) -> Floats:
            truth = labels.astype(objective.label_dtype(self.planned.settings.dtype))
            with jax.enable_x64(self.planned.settings.dtype == "float64"):
                return np.asarray(objective.losses(jnp.asarray(scores), jnp.asarray(truth)), np.float64)

        scores = self.simulation.scores(state.blocks, [silo.features[self.rows] for silo in silos])
        train, labels = losses(scores, true_labels[self.rows]), self.federation.test_labels
        if labels is None:
            return train, np.empty(0), None
        scores = self.simulation.scores(state.blocks, [np.asarray(silo.test_features) for silo in silos])
        figures = metrics(objective.loss, scores, labels)
        return train, losses(scores, labels), next((figures[key] for key in UTILITIES if key in figures), None)

    def _refuse_diverged(self, state: State) -> None:
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.blocks)):
            raise ValueError(
                f"train.step_size = {self.planned.settings.step_size:g}: the blocks stop being finite, so there is "
                "nothing to attack; use a smaller one"
            )


def _sent(exchange: Codec, phi: Any, sending: Sending) -> NDArray[Any]:
    return np.asarray(exchange.decode(exchange.encode(phi, sending), sending))


def _largest(phi: NDArray[Any]) -> float:
    return float(np.abs(phi).max(initial=0))
