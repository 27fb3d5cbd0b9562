"""Predictions across the federation: every hub scores its own columns, and only those scores travel."""

import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.alignment.digests import keyed_digests
from tdcd.core.fixed_point import FixedPoint
from tdcd.core.stopping import Interrupted
from tdcd.prediction.predict import SiloScores, silo_scores
from tdcd.runtime.certificates.agreement import ForgedCardError, Keys
from tdcd.runtime.compute.masks import Masks
from tdcd.runtime.compute.sums import Sums
from tdcd.runtime.process.dialogue import converse
from tdcd.runtime.process.party import PartySection, keys_of, open_transport, read_job, secret_of
from tdcd.runtime.protocol.comparing import compare_settings
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import PredictHello, PredictScores
from tdcd.runtime.protocol.sample_index import IncompatibleParties
from tdcd.runtime.protocol.structure import Array, Message
from tdcd.runtime.protocol.taking import take
from tdcd.runtime.protocol.wire import RejectedMessage

PREDICTION = "prediction"
"""What the keys are for."""


class ModelOf(NamedTuple):
    """Which training a block is of, and how that ended."""

    run: str | None
    status: str | None


class PredictHub:
    """A hub's side: say which samples it has, by keyed digests, and to each peer its scores of the common ones."""

    def __init__(self, job: Job, silo: int, secret: bytes, own: SiloScores, model: ModelOf) -> None:
        """Take this silo's scores, and which run and round its block is of."""
        self.job, self.name, self.partners = job, job.hubs[silo], job.peers(silo)
        self.own = own
        self.parts: dict[str, SiloScores] = {}
        """What the peers sent, by hub, for those of this silo's ids that they have."""
        self._model = model
        self._digests = keyed_digests(list(own.ids), secret)
        self._place = _places(self._digests)
        self._met: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether all peers have sent theirs and got ours."""
        return len(self.parts) == len(self.partners) and self._met >= set(self.partners)

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [peer for peer in self.partners if peer not in self.parts or peer not in self._met]

    def scores(self) -> dict[str, SiloScores]:
        """What the peers' columns add to the scores, by hub."""
        return self.parts

    def start(self) -> list[Message]:
        """Which samples this silo has."""
        return [self._hello().to(peer) for peer in self.partners]

    def _hello(self) -> PredictHello:
        digests, (run, status) = Array.of(self._digests), self._model
        return PredictHello(self.name, "", model_run=run, model_status=status, digests=digests, config=self.job.shared)

    def receive(self, message: Message) -> list[Message]:
        """A peer's samples, or its scores."""
        if isinstance(message, PredictHello):
            return self._on_hello(message)
        if not isinstance(message, PredictScores):
            raise RejectedMessage(f"nobody asked for '{message.kind}'")
        return self._on_scores(message)

    def _on_scores(self, message: PredictScores) -> list[Message]:
        places = take(message.places, "places", np.int64, [None])
        phi = take(message.phi, "phi", self.own.phi.dtype, [len(places), self.own.phi.shape[1]])
        if len(places) and not 0 <= places.min() <= places.max() < len(self.own.ids):
            raise RejectedMessage("'places' points past this hub's samples")
        self.parts[message.sender] = SiloScores([self.own.ids[place] for place in places], phi)
        return []

    def _on_hello(self, message: PredictHello) -> list[Message]:
        theirs = self._check_hello(message)
        pairs = [(p, self._place[r.tobytes()]) for p, r in enumerate(theirs) if r.tobytes() in self._place]
        places = np.array([place for place, _ in pairs], np.int64)
        phi = self.own.phi[[row for _, row in pairs]]
        self._met.add(message.sender)
        return [PredictScores(self.name, message.sender, places=Array.of(places), phi=Array.of(phi))]

    def _check_hello(self, message: PredictHello) -> NDArray[np.uint8]:
        """The digests of a peer's samples, if it has the same file and the same model."""
        compare_settings(message.sender, message.config, self.name, self.job)
        theirs = ModelOf(message.model_run, message.model_status)
        if theirs != self._model:
            raise IncompatibleParties(
                f"the blocks do not belong together: {message.sender} has {theirs}, {self.name} {self._model}"
            )
        found: NDArray[np.uint8] = take(message.digests, "digests", np.uint8, [None, self._digests.shape[1]])
        return found


class MaskedPredictHub(PredictHub):
    """The same with masks: for the samples that all hubs have, each gets the sum of the others' scores only.

    Key pairs are drawn anew every time, so that no masks are ever used for two predictions.
    """

    def __init__(self, job: Job, silo: int, secret: bytes, own: SiloScores, model: ModelOf, keys: Keys) -> None:
        """Take the hub's keys too."""
        super().__init__(job, silo, secret, own, model)
        self._pair = keys.pair(PREDICTION, kept_with=secrets.token_hex(16))
        self._hellos = {self.name: super()._hello().replace(card=self._pair.card())}
        self._received: dict[str, PredictScores] = {}
        self._session = ""
        """Which hubs' keys the masks are of; a hub that comes back has another one."""
        self._sums: Sums | None = None
        self._common: list[int] = []
        """Which of this hub's samples all hubs have, in an order that all know."""

    def _hello(self) -> PredictHello:
        return self._hellos[self.name]

    def _on_hello(self, message: PredictHello) -> list[Message]:
        self._check_hello(message)
        self._hellos[message.sender] = message
        self._met.add(message.sender)
        if len(self._hellos) < len(self.job.hubs):
            return []
        places = {hub: _places(one.digests.values) for hub, one in self._hellos.items()}
        shared = sorted(set.intersection(*(set(found) for found in places.values())))
        self._common = [self._place[digest] for digest in shared]
        self._agree()
        assert self._sums is not None
        phi = Array.of(self._sums.part("prediction", 0, self.own.phi[self._common]))
        self._take_parts()
        return [
            PredictScores(self.name, peer, run=self._session, places=Array.of(np.array(its, np.int64)), phi=phi)
            for peer in self.partners
            for its in [[places[peer][digest] for digest in shared]]
        ]

    def _agree(self) -> None:
        """The masks that all hubs' keys give."""
        cards, exchange = [self._hellos[hub].card for hub in self.job.hubs], self.job.variant.exchange
        try:
            shared = {peer: self._pair.agree(peer, PREDICTION, self._hellos[peer].card) for peer in self.partners}
        except ForgedCardError as error:
            raise IncompatibleParties(str(error)) from None
        self._session = hashlib.sha256(b"".join(card.public for card in cards if card)).hexdigest()[:32]
        assert isinstance(exchange, FixedPoint)
        masks = Masks(self.name, shared, self.job.hubs, self._session)
        self._sums = Sums(exchange, str(self.own.phi.dtype), self.name, masks)

    def _on_scores(self, message: PredictScores) -> list[Message]:
        # It may come before this hub knows whose keys its masks are of.
        self._received[message.sender] = message
        self._take_parts()
        return []

    def _take_parts(self) -> None:
        """Use what came with the masks of this session."""
        ids, self.parts = [self.own.ids[row] for row in self._common], {}
        for peer, message in self._received.items():
            if self._session and message.run == self._session:
                if [*take(message.places, "places", np.int64, [len(ids)])] != self._common:
                    raise RejectedMessage("'places' are not the samples that all hubs have")
                steps = take(message.phi, "phi", np.uint32, [len(ids), self.own.phi.shape[1]])
                self.parts[peer] = SiloScores(ids, steps)

    def scores(self) -> dict[str, SiloScores]:
        """The sum of the peers' scores, as the first one's, and nothing as the others'.

        Ids that not all hubs have are there without scores, so that it can be said who lacks them.
        """
        assert self._sums is not None
        total = self._sums.others("prediction", 0, [self.parts[peer].phi for peer in self.partners])
        found = {}
        for peer in self.partners:
            digests = _places(self._hellos[peer].digests.values)
            rows = [row for digest, row in self._place.items() if digest in digests]
            phi = np.zeros((len(self.own.ids), self.own.phi.shape[1]), self.own.phi.dtype)
            phi[self._common] = total if peer == self.partners[0] else 0
            found[peer] = SiloScores([self.own.ids[row] for row in rows], phi[rows])
        return found


def _places(digests: NDArray[np.uint8]) -> dict[bytes, int]:
    """Where each digest is in a hub's list."""
    return {row.tobytes(): place for place, row in enumerate(digests)}


def predict_with_peers(
    federation: Path,
    silo: str,
    run: Path,
    data: Path,
    own: PartySection,
    *,
    watch: Callable[[list[str]], None] = lambda missing: None,
    should_stop: Callable[[], bool] = lambda: False,
    allow_missing: bool = False,
) -> dict[str, SiloScores]:
    """This silo's scores of the samples in ``data``, and those of the other silos for the same ids, by silo.

    Every hub gives this command at the same time, with its own table and run folder. No block and no feature leaves
    its silo: a peer gets the scores of the samples that it has too, and keyed digests of the other ids. Where sums are
    masked, the sum over the others is told as the first of them.
    """
    job = read_job(federation)
    index = job.silo_index(silo)
    is_masked = job.config.exchange.protect == "mask"
    if is_masked and allow_missing:
        raise ValueError(
            "--allow-missing does not go with exchange.protect = 'mask': the sum for an id that a silo lacks would be "
            "of fewer silos, which may be one; leave such ids out with --common"
        )
    mine = job, index, secret_of(job, own), silo_scores(run, silo, data), _model_of(run)
    hub = MaskedPredictHub(*mine, keys_of(job, job.hubs[index], own)) if is_masked else PredictHub(*mine)
    with open_transport(job, hub.name, list(hub.partners), own) as transport:
        outcome = converse(hub, transport, watch, should_stop)
    if outcome.status == "interrupted":
        raise Interrupted("Interrupted; nothing was written.")
    if outcome.status != "finished":
        raise ValueError(f"{outcome.status}: {outcome.reason}")
    return {silo: hub.own, **{peer.removeprefix("hub."): part for peer, part in hub.scores().items()}}


def _model_of(run: Path) -> ModelOf:
    """Which training a run folder's block is of: the hubs' own name of it, where there is one."""
    path = run / "hub.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    return ModelOf(about.get("run"), about.get("status"))
