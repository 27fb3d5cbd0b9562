"""Predictions across the federation: every hub scores its own columns, and only those scores travel.

If one silo alone has labels, scores go to its hub only, since it alone knows what their sums mean.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.alignment.digests import keyed_digests
from tdcd.core.stopping import Interrupted
from tdcd.prediction.predict import SiloScores, silo_scores
from tdcd.runtime.process.dialogue import converse
from tdcd.runtime.process.party import PartySection, open_transport, read_job, secret_of
from tdcd.runtime.protocol.comparing import compare_settings
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import PredictHello, PredictScores
from tdcd.runtime.protocol.sample_index import IncompatibleParties
from tdcd.runtime.protocol.structure import Array, Message
from tdcd.runtime.protocol.taking import take
from tdcd.runtime.protocol.wire import RejectedMessage


class ModelOf(NamedTuple):
    """Which training a block is of, and how that ended."""

    run: str | None
    status: str | None


class PredictHub:
    """A hub's side: say which samples it has, by keyed digests, and to each peer its scores of the common ones."""

    def __init__(self, job: Job, silo: int, secret: bytes, own: SiloScores, model: ModelOf) -> None:
        """Take this silo's scores, and which run and round its block is of."""
        self.job, self.name, self._label_hub = job, job.hubs[silo], job.audience.label_hub
        self.partners = tuple(peer for peer in job.peers(silo) if self._label_hub in (None, self.name, peer))
        self.predicts = job.has_labels(silo)
        """Whether this hub gets the others' scores."""
        self.own = own
        self.parts: dict[str, SiloScores] = {}
        """What the peers sent, by hub, for those of this silo's ids that they have."""
        self._model = model
        self._digests = keyed_digests(list(own.ids), secret)
        self._place = {row.tobytes(): place for place, row in enumerate(self._digests)}
        self._met: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether all peers have sent theirs and got ours."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Who is being waited for."""
        sent = self.parts if self.predicts else self.partners
        return [peer for peer in self.partners if peer not in sent or peer not in self._met]

    def start(self) -> list[Message]:
        """Which samples this silo has."""
        # Who gets no scores need not say of which samples it would.
        digests, (run, status) = Array.of(self._digests[: None if self.predicts else 0]), self._model
        hello = PredictHello(self.name, "", model_run=run, model_status=status, digests=digests, config=self.job.shared)
        return [hello.to(peer) for peer in self.partners]

    def receive(self, message: Message) -> list[Message]:
        """A peer's samples, or its scores."""
        if isinstance(message, PredictHello):
            return self._on_hello(message)
        if not isinstance(message, PredictScores) or not self.predicts:
            raise RejectedMessage(f"nobody asked for '{message.kind}'")
        places = take(message.places, "places", np.int64, [None])
        phi = take(message.phi, "phi", self.own.phi.dtype, [len(places), self.own.phi.shape[1]])
        if len(places) and not 0 <= places.min() <= places.max() < len(self.own.ids):
            raise RejectedMessage("'places' points past this hub's samples")
        self.parts[message.sender] = SiloScores([self.own.ids[place] for place in places], phi)
        return []

    def _on_hello(self, message: PredictHello) -> list[Message]:
        compare_settings(message.sender, message.config, self.name, self.job)
        theirs = ModelOf(message.model_run, message.model_status)
        if theirs != self._model:
            raise IncompatibleParties(
                f"the blocks do not belong together: {message.sender} has {theirs}, {self.name} {self._model}"
            )
        self._met.add(message.sender)
        if self._label_hub == self.name:
            return []
        theirs_ids: NDArray[np.uint8] = take(message.digests, "digests", np.uint8, [None, self._digests.shape[1]])
        pairs = [(p, self._place[r.tobytes()]) for p, r in enumerate(theirs_ids) if r.tobytes() in self._place]
        places = np.array([place for place, _ in pairs], np.int64)
        phi = self.own.phi[[row for _, row in pairs]]
        return [PredictScores(self.name, message.sender, places=Array.of(places), phi=Array.of(phi))]


def predict_with_peers(
    federation: Path,
    silo: str,
    run: Path,
    data: Path,
    own: PartySection,
    *,
    watch: Callable[[list[str]], None] = lambda missing: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, SiloScores]:
    """This silo's scores of the samples in ``data``, and those of the other silos for the same ids, by silo.

    Every hub gives this command at the same time, with its own table and run folder. No block and no feature leaves
    its silo: a peer gets the scores of the samples that it has too, and keyed digests of the other ids. If one silo
    alone has labels, the others get this silo's scores only, which went to that one.
    """
    job = read_job(federation)
    index = job.silo_index(silo)
    hub = PredictHub(job, index, secret_of(job, own), silo_scores(run, silo, data), _model_of(run))
    with open_transport(job, hub.name, list(hub.partners), own) as transport:
        outcome = converse(hub, transport, watch, should_stop)
    if outcome.status == "interrupted":
        raise Interrupted("Interrupted; nothing was written.")
    if outcome.status != "finished":
        raise ValueError(f"{outcome.status}: {outcome.reason}")
    return {silo: hub.own, **{peer.removeprefix("hub."): part for peer, part in hub.parts.items()}}


def _model_of(run: Path) -> ModelOf:
    """Which training a run folder's block is of: the hubs' own name of it, where there is one."""
    path = run / "hub.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    return ModelOf(about.get("run"), about.get("status"))
