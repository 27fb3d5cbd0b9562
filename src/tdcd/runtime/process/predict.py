"""Predictions across the federation: every hub scores its own columns, and only those scores travel.

If one silo alone has labels, scores go to its hub only, since it alone knows what their sums mean.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Collection
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.alignment.alignment import BlindedIds, checked_points, comparison_of
from tdcd.blocks.base import with_head, without_head
from tdcd.blocks.start import start_block
from tdcd.config import ConfigError
from tdcd.config.losses import chosen_loss
from tdcd.core.execution import Interrupted
from tdcd.core.trees import named_leaves
from tdcd.federation import client_of, hub_of
from tdcd.prediction.model import Model, SiloModel
from tdcd.prediction.scores import SiloScores, check_without, no_scores
from tdcd.records.files import digest_of, read_json
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.certificates.agreement import KEY_BYTES, ForgedCardError, Keys
from tdcd.runtime.compute.secure_sums import Masks, Sums
from tdcd.runtime.job import IncompatibleParties, Job, compare_settings
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.messages.messages import PredictHello, PredictModel, PredictReturned, PredictRows, PredictScores
from tdcd.runtime.messages.structure import Array, Message, named
from tdcd.runtime.messages.validation import take, take_all, take_json, take_mask
from tdcd.runtime.messages.wire import RejectedMessage, encode
from tdcd.runtime.process.dialogue import Waiting, converse
from tdcd.runtime.process.party import PartySection, account_for_predictions, keys_of, open_transport
from tdcd.tables.client_table import find_silo
from tdcd.tables.errors import caution
from tdcd.tables.preparation import Preparation
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns, RawRows, id_order

PREDICTION = "prediction"
"""What the keys are for."""


class StandInScores(NamedTuple):
    """A silo's stand-ins for others."""

    silos: tuple[str, ...]
    """Those that they stand in for."""
    phi: Callable[[NDArray[np.bool_]], NDArray[Any] | None]
    """Phi of the silo's rows, if ``[n, S]`` says which of them need which stand-in; None if that is still to come."""


class ModelOf(NamedTuple):
    """Which training a block is of, and how that ended."""

    run: str | None
    status: str | None


NO_NOISE = (
    "{}: it adds noise to what hubs send in training, and predictions would send phi of the new rows "
    "without it; predict from a model whose parts are in one place"
)


Spend = Callable[[str, int], None]
"""Counts that a hub is about to be sent phi of so many rows."""


class ComparedIds:
    """What a hub and one of its peers know of each other's samples: every set blinded by both."""

    def __init__(self, theirs: NDArray[np.uint8], name: str) -> None:
        """Take the peer's samples, blinded by it and by this hub; and the name of this comparison."""
        self.theirs, self.name = theirs, name
        self.returned: NDArray[np.uint8] | None = None
        """This hub's samples, blinded by it and by the peer."""

    def pairs(self) -> list[tuple[int, int]]:
        """Where the samples that both hubs have are: in this hub's points and in the peer's, in this hub's order."""
        assert self.returned is not None
        places = {row.tobytes(): place for place, row in enumerate(self.theirs)}
        return [(own, places[row.tobytes()]) for own, row in enumerate(self.returned) if row.tobytes() in places]


def refuse_noise(job: Job) -> None:
    """Refuse to send phi of new rows as it is, where training sent it with noise."""
    if job.variant.is_private:
        epsilon, variant = job.config.exchange.epsilon, job.config.train.variant
        where = f"train.variant = {variant!r}" if epsilon is None else f"exchange.epsilon = {epsilon:g}"
        raise ConfigError([NO_NOISE.format(where)])


def receivers_of(job: Job, to: Collection[str] = ()) -> tuple[str, ...]:
    """The hubs that get the others' scores: of those ``to`` which they go, by default all, the ones with labels."""
    with_labels = [hub for index, hub in enumerate(job.hubs) if job.has_labels(index)]
    return tuple(hub for hub in with_labels if hub in (to or with_labels))


class PredictHub:
    """A hub's side: find out with each peer which samples both have, and send it the scores of those.

    Hubs compare ids by private set intersection, pair by pair; see :class:`~tdcd.alignment.BlindedIds`.
    """

    def __init__(
        self,
        job: Job,
        silo: int,
        own: SiloScores,
        model: ModelOf,
        without: Collection[str] = (),
        progress: Callable[[float], None] = lambda done: None,
        stand_ins: StandInScores | None = None,
        to: Collection[str] = (),
        spend: Spend = lambda hub, rows: None,
    ) -> None:
        """Take this silo's scores, and which run and round its block is of; some hubs may be missing.

        Args:
            stand_ins: of a model that was trained on samples that some silos lack.
            to: the hubs that get the others' scores, the same for all hubs; by default those of silos with labels.
            spend: called before anything of this silo's is sent.
        """
        refuse_noise(job)
        self.job, self.name = job, job.hubs[silo]
        self.receivers = receivers_of(job, to)
        """The hubs that get the others' scores."""
        peers = [peer for peer in job.peers(silo) if peer not in without]
        self.partners = tuple(peer for peer in peers if {self.name, peer} & {*self.receivers})
        self.predicts = self.name in self.receivers
        """Whether this hub gets the others' scores."""
        self.own = own
        self.parts: dict[str, SiloScores] = {}
        """What the peers sent, by hub, for those of this silo's ids that they have."""
        self._model, self._progress, self._stand_ins, self._spend = model, progress, stand_ins, spend
        self._blinded = BlindedIds(list(own.ids), advance=self._advance)
        row_of = {sample: row for row, sample in enumerate(own.ids)}
        self._rows = np.array([row_of[sample] for sample in self._blinded.ids], np.int64)
        """Which row of this silo's scores each of its points is about."""
        self._compared: dict[str, ComparedIds] = {}
        self._their_stand_ins: dict[str, tuple[str, ...]] = {}
        """By hub: the silos that it has stand-ins for."""
        self._computed, self._to_compute = 0, len(own.ids)
        self._points: NDArray[np.uint8] | None = None

    @property
    def done(self) -> bool:
        """Whether all peers have sent theirs and got ours."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [
            peer for peer in self.partners if not self._has_compared(peer) or (self.predicts and peer not in self.parts)
        ]

    def scores(self) -> dict[str, SiloScores]:
        """What the peers' columns add to the scores, by hub."""
        return self.parts

    def start(self) -> list[Message]:
        """Which samples this silo has."""
        return [self._hello().to(peer) for peer in self.partners]

    def receive(self, message: Message) -> list[Message]:
        """A peer's samples, this hub's samples as the peer returns them, or the peer's scores."""
        if isinstance(message, PredictHello):
            return self._on_hello(message)
        if isinstance(message, PredictReturned) and message.sender in self._compared:
            self._check_current(message)
            if self._has_compared(message.sender):
                raise RejectedMessage("it was returned before")
            what = f"the set of {self.name} that {message.sender} returned"
            returned = take(message.points, "points", np.uint8, [None, None])
            self._compared[message.sender].returned = checked_points(returned, len(self._rows), what)
            return self._on_compared(message.sender)
        if not isinstance(message, PredictScores) or not self.predicts:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        return self._on_scores(message)

    def _hello(self) -> PredictHello:
        if self._points is None:
            self._points = self._blinded.points()
        run, status = self._model
        points = Array.of(self._points)
        stand_ins = () if self._stand_ins is None else self._stand_ins.silos
        config = self.job.shared
        return PredictHello(
            self.name, "", model_run=run, model_status=status, points=points, stand_ins=stand_ins, config=config
        )

    def _on_hello(self, message: PredictHello) -> list[Message]:
        """Blind a peer's samples too, if it has the same file and the same model; it may come back with new ones."""
        compare_settings(message.sender, message.config, self.name, self.job)
        theirs = ModelOf(message.model_run, message.model_status)
        if theirs != self._model:
            raise IncompatibleParties(
                f"the blocks do not belong together: {message.sender} has {theirs}, {self.name} {self._model}"
            )
        points = take(message.points, "points", np.uint8, [None, None])
        points = checked_points(points, len(points), f"the set of {message.sender} that it sent")
        self._to_compute += len(points)
        self._their_stand_ins[message.sender] = message.stand_ins
        own = self._hello().points.values
        compared = ComparedIds(self._blinded.blind(points), comparison_of(own, points))
        self._compared[message.sender] = compared
        self.parts.pop(message.sender, None)
        return [PredictReturned(self.name, message.sender, run=compared.name, points=Array.of(compared.theirs))]

    def _check_current(self, message: PredictReturned | PredictScores) -> None:
        """Reject an answer to the points of a process that has ended: those of this hub, or of the sender."""
        compared = self._compared.get(message.sender)
        if compared is None or message.run != compared.name:
            raise RejectedMessage("it is about samples that were compared before one of the hubs came back")

    def _on_compared(self, peer: str) -> list[Message]:
        """Send the peer this silo's scores of the samples that both have; with stand-ins, once all are compared."""
        if self._stand_ins is not None:
            if not all(map(self._has_compared, self.partners)):
                return []
            phi = self._stand_ins.phi(self._absent())
            return [] if phi is None else self.stand_in(phi)
        return self._scores_for(peer)

    def stand_in(self, phi: NDArray[Any]) -> list[Message]:
        """Send the peers this silo's scores, with its stand-ins for the silos that lack its rows."""
        self.own = self.own._replace(phi=phi)
        return [message for partner in self.partners for message in self._scores_for(partner)]

    def _absent(self) -> NDArray[np.bool_]:
        """``[n, S]``: which of this silo's rows need which of its stand-ins, as :meth:`Model.all_scores` has it."""
        assert self._stand_ins is not None
        earlier = self.job.hubs[: self.job.hubs.index(self.name)]
        absent = np.ones((len(self.own.ids), len(self._stand_ins.silos)), bool)
        for place, silo in enumerate(self._stand_ins.silos):
            for hub in self.partners:
                if hub == hub_of(silo) or (hub in earlier and silo in self._their_stand_ins[hub]):
                    absent[[*self._shared_with(hub)], place] = False
        return absent

    def _scores_for(self, peer: str) -> list[Message]:
        if peer not in self.receivers:
            return []
        pairs = self._compared[peer].pairs()
        places = np.array([place for _, place in pairs], np.int64)
        phi = self.own.phi[self._rows[[own for own, _ in pairs]]]
        name = self._compared[peer].name
        self._spend(peer, len(places))
        return [PredictScores(self.name, peer, run=name, places=Array.of(places), phi=Array.of(phi))]

    def _on_scores(self, message: PredictScores) -> list[Message]:
        self._check_current(message)
        places = take(message.places, "places", np.int64, [None])
        phi = take(message.phi, "phi", self.own.phi.dtype, [len(places), self.own.phi.shape[1]])
        if len(places) and not 0 <= places.min() <= places.max() < len(self._rows):
            raise RejectedMessage("'places' points past this hub's samples")
        if len(np.unique(places)) < len(places):
            raise RejectedMessage("'places' has a sample twice")
        rows = self._rows[places]
        order = np.argsort(rows)
        self.parts[message.sender] = SiloScores([self.own.ids[row] for row in rows[order]], phi[order])
        return []

    def _has_compared(self, peer: str) -> bool:
        return peer in self._compared and self._compared[peer].returned is not None

    def _shared_with(self, peer: str) -> set[int]:
        """The rows of this silo that a peer has too."""
        return {int(self._rows[own]) for own, _ in self._compared[peer].pairs()}

    def _advance(self, count: int) -> None:
        self._computed += count
        self._progress(self._computed / self._to_compute)


class MaskedPredictHub(PredictHub):
    """The same with masks: for the samples that all hubs have, each gets the sum of the others' scores only.

    All hubs compare ids with each other, also those that get no scores: masks cancel only over the same samples. New
    key pairs are drawn every time, so that no masks are ever used for two predictions.
    """

    def __init__(
        self,
        job: Job,
        silo: int,
        own: SiloScores,
        model: ModelOf,
        keys: Keys,
        progress: Callable[[float], None] = lambda done: None,
        to: Collection[str] = (),
        spend: Spend = lambda hub, rows: None,
    ) -> None:
        """Take the hub's keys too."""
        super().__init__(job, silo, own, model, progress=progress, to=to, spend=spend)
        self.partners = job.peers(silo)
        self._pair = keys.pair(PREDICTION, kept_with=secrets.token_hex(16))
        self._hellos: dict[str, PredictHello] = {}
        self._received: dict[str, PredictScores] = {}
        self._session = ""
        """Which hubs' keys and samples the masks are of; a hub that comes back has another one."""
        self._sums: Sums | None = None
        self._senders = [hub for hub in job.hubs if self.receivers != (hub,)]
        """The hubs whose scores are added up."""
        self._common: list[int] = []
        """Which of this hub's samples all hubs have, in an order that all know."""

    def missing(self) -> list[str]:
        """Who is being waited for."""
        wanted = self._senders if self.predicts else []
        return [
            peer
            for peer in self.partners
            if not self._has_compared(peer) or (peer in wanted and peer not in self.parts)
        ]

    def _hello(self) -> PredictHello:
        if self.name not in self._hellos:
            self._hellos[self.name] = super()._hello().replace(card=self._pair.card())
        return self._hellos[self.name]

    def _on_hello(self, message: PredictHello) -> list[Message]:
        self._hellos[message.sender] = message
        return super()._on_hello(message)

    def _on_compared(self, peer: str) -> list[Message]:
        """Once all hubs' samples are compared: send the masked scores of those that all have."""
        if not all(self._has_compared(hub) for hub in self.partners):
            return []
        shared = sorted(set.intersection(*(self._shared_with(hub) for hub in self.partners)))
        ids = [self.own.ids[row] for row in shared]
        self._common = [shared[place] for place in id_order(ids)]
        sums = self._sums = self._agree()
        self._take_parts()
        if self.name not in self._senders:
            return []
        phi = Array.of(sums.part("prediction", 0, self.own.phi[self._common]))
        places = Array.of(np.arange(len(self._common), dtype=np.int64))
        sent_to = [hub for hub in self.partners if hub in self.receivers]
        for hub in sent_to:
            self._spend(hub, len(self._common))
        return [PredictScores(self.name, hub, run=self._session, places=places, phi=phi) for hub in sent_to]

    def _agree(self) -> Sums:
        """The masks that all hubs' keys give; the hub with the labels only adds up."""
        exchange, members = self.job.round.summed_phi, self._senders
        # Other samples, too, get other masks.
        named = hashlib.sha256(digest_of({"common": [self.own.ids[row] for row in self._common]}, {}).encode())
        for hello in (self._hellos[hub] for hub in self.job.hubs):
            named.update(b"" if hello.card is None else hello.card.public)
            named.update(hashlib.sha256(hello.points.values.tobytes()).digest())
        self._session = named.hexdigest()[:32]
        assert exchange is not None
        masks = None
        if self.name in members:
            others = [hub for hub in members if hub != self.name]
            try:
                shared = {hub: self._pair.agree(hub, PREDICTION, self._hellos[hub].card) for hub in others}
            except ForgedCardError as error:
                raise IncompatibleParties(str(error)) from None
            masks = Masks(self.name, shared, members, self._session)
        return Sums(exchange, str(self.own.phi.dtype), self.name, masks)

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
                take(message.places, "places", np.int64, [len(ids)])
                steps = take(message.phi, "phi", np.uint32, [len(ids), self.own.phi.shape[1]])
                self.parts[peer] = SiloScores(ids, steps)

    def scores(self) -> dict[str, SiloScores]:
        """The sum of the peers' scores, as the first one's, and nothing as the others'.

        Ids that not all hubs have are there without scores, so that the silos that lack them can be named.
        """
        if not self.predicts:
            return {}
        assert self._sums is not None
        total = self._sums.others("prediction", 0, [self.parts[hub].phi for hub in self._senders if hub != self.name])
        by_peer = {}
        for peer in self.partners:
            rows = sorted(self._shared_with(peer))
            phi = np.zeros((len(self.own.ids), self.own.phi.shape[1]), self.own.phi.dtype)
            phi[self._common] = total if peer == self.partners[0] else 0
            by_peer[peer] = SiloScores([self.own.ids[row] for row in rows], phi[rows])
        return by_peer


class ScoringHub:
    """A hub without rows: its clients score theirs with the silo's part of the model, and then it is a PredictHub.

    Clients get what they get in training: the preparation and the hub's block. Their hub gets ids and phi, no cell.
    Where silos may lack samples, they score their rows once more when it is known which of them need a stand-in.
    """

    def __init__(
        self, job: Job, silo: int, model: Model, hub_of_rows: Callable[[SiloScores, StandInScores | None], PredictHub]
    ) -> None:
        """Take the model, and what makes a hub of the silo's scores and its stand-ins."""
        name = job.config.silo_names[silo]
        self.name, self.clients = job.hubs[silo], job.clients(silo)
        self._job, self._part, self._outputs = job, model.part(name), model.num_outputs
        self._dtype, self._width = model.dtype, model.phi_width
        self._hub_of_rows = hub_of_rows
        self.peers = hub_of_rows(no_scores(model), None).partners
        self.partners = (*self.clients, *self.peers)
        self.hub: PredictHub | None = None
        """The hub with its clients' scores, once they are there."""
        self._rows: dict[str, SiloScores] = {}
        self._early: dict[str, PredictHello] = {}
        self._asked: dict[str, str] = {}
        """By client: a digest of what it was asked for last."""
        self._absent: NDArray[np.bool_] | None = None
        """Which rows need which stand-ins, once clients were asked for them."""
        self._with_stand_ins: dict[str, NDArray[Any]] = {}
        """By client: phi with them."""

    @property
    def done(self) -> bool:
        """Whether the clients' scores are here, and all peers have sent theirs and got ours."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Who is being waited for."""
        if self.hub is None:
            return [client for client in self.clients if client not in self._rows]
        asked = self.clients if self._absent is not None else ()
        return [*self.hub.missing(), *(client for client in asked if client not in self._with_stand_ins)]

    def start(self) -> list[Message]:
        """The silo's part of the model, for its clients."""
        return [self._model(client) for client in self.clients]

    def _model(self, client: str, absent: NDArray[np.bool_] | None = None) -> PredictModel:
        part = self._part
        message = PredictModel(
            self.name,
            client,
            preparation=json.dumps(part.preparation.to_json()),
            feature_shape=part.feature_shape,
            outputs=self._outputs,
            block=named({name: np.asarray(leaf) for name, leaf in named_leaves(part.parameters).items()}),
            absent=None if absent is None else Array.of(absent.astype(np.uint8)),
            config=self._job.shared,
        )
        self._asked[client] = _digest_of(message)
        return message

    def receive(self, message: Message) -> list[Message]:
        """A client's scores, or another hub's part of the prediction."""
        if message.sender in self.clients:
            if not isinstance(message, PredictRows):
                raise RejectedMessage(f"'{message.kind}' was not requested")
            if message.run != self._asked[message.sender]:
                raise RejectedMessage("it is of the model of a process that has ended")
            return self._on_stand_ins(message) if message.stands_in else self._on_rows(message)
        if self.hub is not None:
            return self._and_ask(lambda hub: hub.receive(message))
        if not isinstance(message, PredictHello) or message.sender not in self.peers:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        # One of each peer, the last.
        self._early[message.sender] = message
        return []

    def _and_ask(self, speak: Callable[[PredictHub], list[Message]]) -> list[Message]:
        """What the hub says; and if it has found out which rows need stand-ins, a question to the clients."""
        assert self.hub is not None
        was_asked, out = self._absent is not None, speak(self.hub)
        if self._absent is None or was_asked:
            return out
        ends = np.cumsum([len(self._rows[client].ids) for client in self.clients])
        parts = np.split(self._absent, ends[:-1])
        return out + [self._model(client, own) for client, own in zip(self.clients, parts, strict=True)]

    def _stand_in_phi(self, absent: NDArray[np.bool_]) -> NDArray[Any] | None:
        if self._absent is not None and (absent != self._absent).any():
            raise IncompatibleParties(
                "another hub came back with other rows: start the prediction again at all parties"
            )
        self._absent = absent
        if len(self._with_stand_ins) < len(self.clients):
            return None
        return np.concatenate([self._with_stand_ins[client] for client in self.clients])

    def _on_stand_ins(self, message: PredictRows) -> list[Message]:
        if self._absent is None or message.sender in self._with_stand_ins:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        ids = self._rows[message.sender].ids
        if message.ids != ids:
            raise RejectedMessage("'ids' are others than before")
        self._with_stand_ins[message.sender] = take(message.phi, "phi", self._dtype, [len(ids), self._width])
        phi = self._stand_in_phi(self._absent)
        assert self.hub is not None
        return [] if phi is None else self.hub.stand_in(phi)

    def _on_rows(self, message: PredictRows) -> list[Message]:
        if self.hub is not None:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        compare_settings(message.sender, message.config, self.name, self._job)
        phi = take(message.phi, "phi", self._dtype, [len(message.ids), self._width])
        if len(set(message.ids)) < len(message.ids):
            raise RejectedMessage("'ids' has an id twice")
        self._rows[message.sender] = SiloScores(message.ids, phi)
        if self.missing():
            return []
        parts = [self._rows[client] for client in self.clients]
        holder: dict[str, str] = {}
        for client, part in zip(self.clients, parts, strict=True):
            for sample in part.ids:
                if sample in holder:
                    raise IncompatibleParties(f"id '{sample}' is held by {holder[sample]} and by {client}")
                holder[sample] = client
        stand_ins = StandInScores(self._part.preparation.absent.silos, self._stand_in_phi)
        needs = takes_stand_ins(self._job, self._part)
        scores = SiloScores([*holder], np.concatenate([part.phi for part in parts]))
        self.hub = self._hub_of_rows(scores, stand_ins if needs else None)

        def begin(hub: PredictHub) -> list[Message]:
            early = (hub.receive(hello) for hello in self._early.values())
            return [*hub.start(), *(message for messages in early for message in messages)]

        return self._and_ask(begin)


def takes_stand_ins(job: Job, part: SiloModel) -> bool:
    """Whether a silo's part of the predictions has stand-ins for other silos.

    Masked scores are of the samples that all silos have.
    """
    return job.config.exchange.protect != "mask" and bool(part.preparation.absent.silos)


class ScoringClient:
    """A client's side: score its new rows with the part of the model that its hub sends."""

    def __init__(self, job: Job, silo: int, name: str, table: Path, link: Path | None = None) -> None:
        """Take the table with the new rows, and another link table than that of the configuration."""
        self.name, self.hub = name, job.hubs[silo]
        self.partners: tuple[str, ...] = (self.hub,)
        self.done = False
        self._job, self._silo, self._table, self._link = job, silo, table, link
        self._rows: RawRows | None = None

    @property
    def num_rows(self) -> int:
        """How many rows it has scored."""
        return 0 if self._rows is None else len(self._rows)

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [] if self.done else [self.hub]

    def start(self) -> list[Message]:
        """Nothing: the hub begins."""
        return []

    def receive(self, message: Message) -> list[Message]:
        """The silo's part of the model; the answer has the ids of this client's rows, and their phi.

        If the model has stand-ins, it comes again with the rows that need them.
        """
        if not isinstance(message, PredictModel):
            raise RejectedMessage(f"'{message.kind}' was not requested")
        compare_settings(message.sender, message.config, self.name, self._job)
        part, stands_in = self._part(message), message.absent is not None
        if self._rows is None:
            self._rows = read_rows(self._table, part.columns, may_be_empty=True)
            for column, sentence in part.preparation.cautions(self._rows).items():
                caution(f"column '{column}': {sentence}")
        rows, absent = self._rows, None
        if message.absent is not None:
            absent = take_mask(message.absent, "absent", len(rows), len(part.preparation.absent.silos))
        self.done = stands_in or not takes_stand_ins(self._job, part)
        job = self._job
        nothing = np.zeros((0, job.combine.width(message.outputs)), job.settings.dtype)
        phi = Array.of(part.phi(rows, absent) if len(rows) else nothing)
        run = _digest_of(message)
        rows_of = PredictRows(self.name, self.hub, run=run, ids=[*rows.ids], phi=phi, config=job.shared)
        return [rows_of.replace(stands_in=stands_in)]

    def _part(self, message: PredictModel) -> SiloModel:
        job, section = self._job, self._job.config.silos[self._silo]
        try:
            preparation = Preparation.from_json(take_json(message.preparation, "preparation"))
            width = len(preparation.columns)
            if prod(message.feature_shape) not in (width, width + 1):
                raise ValueError(f"there are {width} features, and samples of shape {message.feature_shape}")
            columns = Columns.of(job.config, section).new_rows([*preparation.parts], preparation.categorical)
            columns = columns if self._link is None else columns.linked(self._link)
            num_ones = prod(message.feature_shape) - width
            block = preparation.absent.block(without_head(job.block(self._silo)), num_ones)
            shape = message.feature_shape
            start = start_block(block, job.settings, self._silo, shape, message.outputs, combine=job.combine)
        except (ValueError, KeyError, TypeError) as error:
            raise RejectedMessage(f"the part of the model does not fit: {error}") from None
        layout = {name: (job.settings.dtype, np.shape(leaf)) for name, leaf in named_leaves(start).items()}
        arrays = take_all(message.block, layout)
        parameters = jax.tree.unflatten(jax.tree.structure(start), [arrays[name] for name in layout])
        return SiloModel(columns, preparation, shape, with_head(block, job.combine), parameters)


def _digest_of(question: PredictModel) -> str:
    """What the answer to a question names: who comes back may ask about another model."""
    return hashlib.sha256(encode(question)).hexdigest()[:32]


def score_as_client(
    job: Job,
    silo: str,
    client: str,
    data: Path,
    own: PartySection,
    *,
    waiting: Waiting,
    link: Path | None = None,
) -> int:
    """Take a client's part in a prediction: its hub gets ids and phi of the rows in ``data``. Returns their number.

    Args:
        link: where rows belong to many samples, another link table than that of the configuration.
    """
    find_silo(job.config, silo, client)
    _check_keyed(job, silo, link)
    dialogue = ScoringClient(job, job.silo_index(silo), client_of(silo, client), data, link)
    with open_transport(job, dialogue.name, [*dialogue.partners], own, "predict") as transport:
        _check_ended(converse(dialogue, transport, waiting.show, waiting.should_stop))
    return dialogue.num_rows


def _check_keyed(job: Job, silo: str, link: Path | None) -> None:
    if link is not None and job.config.silos[job.silo_index(silo)].key is None:
        raise ValueError(f"--link {link}: the rows of silo '{silo}' have the ids of samples, and no key")


def predict_with_peers(
    job: Job,
    silo: str,
    run: Path,
    data: Path | None,
    own: PartySection,
    *,
    waiting: Waiting,
    allow_missing: bool = False,
    without: Collection[str] = (),
    allow_code: bool = False,
    to: Collection[str] = (),
    link: Path | None = None,
) -> tuple[Model, dict[str, SiloScores]]:
    """This silo's model; its scores of the samples in ``data``, and those of the other silos for the same ids, by silo.

    Every hub gives this command at the same time, with its own table and run folder. No block and no feature leaves
    its silo: a peer gets the scores of the samples that it has too, and learns nothing of the other ids but their
    number. If one silo alone has labels, the others get this silo's scores only, which went to that one. Where sums
    are masked, the sum over the others is reported as the first of them.

    Args:
        data: the silo's new rows; None if its clients have them, who then take part as :func:`score_as_client`.
        without: silos whose hubs are missing; all others give the same.
        allow_code: import code that only the run folder names; what the federation's file names was asked for.
        to: the hubs that get the others' scores, the same for all hubs; by default those of silos with labels.
        link: where rows belong to many samples, another link table than that of the configuration.
    """
    index = job.silo_index(silo)
    _check_keyed(job, silo, link)
    check_without(job.config.silo_names, without, [silo])
    is_masked = job.config.exchange.protect == "mask"
    if is_masked and allow_missing:
        raise ValueError(
            "--allow-missing does not go with exchange.protect = 'mask': the sum for an id that a silo lacks would be "
            "of fewer silos, which may be one; leave such ids out with --common"
        )
    if is_masked and without:
        raise ValueError(
            f"--without {next(iter(without))} does not go with exchange.protect = 'mask': the sum would be of fewer "
            "silos, which may be one; wait for its hub"
        )
    if job.config.federation.labels in without:
        raise ValueError(f"without '{job.config.federation.labels}': it alone has labels, and predicts")
    model = _model_in(run, job, index, allow_code=allow_code)
    model = model if link is None else model.linked({silo: link})
    trained = model_of(run)
    account = account_for_predictions(own) if {*receivers_of(job, to)} - {job.hubs[index]} else None

    def spend(hub: str, rows: int) -> None:
        if account is not None:
            account.predicted(job, trained.run, hub.removeprefix("hub."), rows)

    def hub_of_rows(scores: SiloScores, stand_ins: StandInScores | None) -> PredictHub:
        if is_masked:
            keys = keys_of(job, job.hubs[index], own, secrets.token_bytes(KEY_BYTES))
            return MaskedPredictHub(job, index, scores, trained, keys, waiting.progress, to, spend)
        gone = [hub_of(missing) for missing in without]
        return PredictHub(job, index, scores, trained, gone, waiting.progress, stand_ins, to, spend)

    party: PredictHub | ScoringHub
    if data is None:
        party = ScoringHub(job, index, model, hub_of_rows)
    else:
        stand_ins, part = None, model.part(silo)
        if takes_stand_ins(job, part):
            rows = read_rows(data, part.columns)
            stand_ins = StandInScores(part.preparation.absent.silos, lambda absent: part.phi(rows, absent))
        party = hub_of_rows(model.silo_scores(silo, data), stand_ins)
    with open_transport(job, party.name, list(party.partners), own, "predict") as transport:
        _check_ended(converse(party, transport, waiting.show, waiting.should_stop))
    hub = party.hub if isinstance(party, ScoringHub) else party
    assert hub is not None
    if is_masked:
        # Masked scores are of the ids that all hubs have: stand-ins have no part in them.
        model = replace(model, stand_ins=model.stand_ins._replace(knows_absence=False))
    return model, {silo: hub.own, **{peer.removeprefix("hub."): part for peer, part in hub.scores().items()}}


def own_scores(
    job: Job, silo: str, run: Path, data: Path | None, own: PartySection, *, waiting: Waiting, allow_code: bool = False
) -> tuple[Model, SiloScores]:
    """This silo's model, and its scores of new rows, for itself: no other silo takes part.

    Args:
        data: the silo's new rows; None if its clients have them, who then take part as :func:`score_as_client`.
    """
    refuse_noise(job)
    index = job.silo_index(silo)
    model = _model_in(run, job, index, allow_code=allow_code)
    model.check_complete("phi that is known ahead")
    if data is not None:
        return model, model.silo_scores(silo, data)
    peers, trained = job.peers(index), model_of(run)

    def hub_of_rows(scores: SiloScores, stand_ins: StandInScores | None) -> PredictHub:
        return PredictHub(job, index, scores, trained, peers, stand_ins=stand_ins)

    party = ScoringHub(job, index, model, hub_of_rows)
    with open_transport(job, party.name, list(party.partners), own, "predict") as transport:
        _check_ended(converse(party, transport, waiting.show, waiting.should_stop))
    assert party.hub is not None
    return model, party.hub.own


def _model_in(run: Path, job: Job, index: int, *, allow_code: bool) -> Model:
    """The model in a hub's run folder, with blocks and loss of the shared file: the folder may come from elsewhere."""
    files = RunFolder(run).model
    # The code of a block of another silo is imported only if its part of the model is here, and needed only then.
    blocks = [
        job.block(number if files.file(name).is_file() else index) for number, name in enumerate(job.config.silo_names)
    ]
    return Model.load(run, blocks, chosen_loss(job.config.model), allow_code=allow_code)


def _check_ended(outcome: RunOutcome) -> None:
    """Raise if a dialogue was interrupted or refused."""
    if outcome.status == "interrupted":
        raise Interrupted("Interrupted; nothing was written.")
    if outcome.status != "finished":
        raise ValueError(f"{outcome.status}: {outcome.reason}")


def model_of(run: Path) -> ModelOf:
    """Which training a run folder's block is of: the hubs' own name of it, where there is one."""
    path = run / "hub.json"
    about = read_json(path) if path.exists() else {}
    return ModelOf(about.get("run"), about.get("status"))
