"""How hubs come to share masks: each two of those whose parts are added up agree on a secret."""

from collections.abc import Mapping, Sequence

from tdcd.runtime.certificates.agreement import ForgedCardError, KeyPair, Keys
from tdcd.runtime.compute.masks import Masks
from tdcd.runtime.protocol.cards import Card
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import Hello
from tdcd.runtime.protocol.sample_index import Enrolment, IncompatibleParties


class MaskAgreement:
    """One hub's side of it."""

    def __init__(self, job: Job, silo: int, keys: Keys, nonce: str) -> None:
        """Take the hub's keys, and its nonce of the run."""
        label_silo = job.variant.knowledge.label_silo
        self._own, self._keys, self._nonce = job.hubs[silo], keys, nonce
        # The hub with the labels only adds up what it gets.
        self._group = [hub for index, hub in enumerate(job.hubs) if index != label_silo]
        self._is_member = job.config.exchange.protect == "mask" and self._own in self._group
        self._pair: KeyPair | None = None

    def card(self, rows: Sequence[str]) -> Card | None:
        """The hub's public key, which goes with its clients' ``rows``: with other rows, masks must not be the same."""
        if not self._is_member:
            return None
        self._pair = self._keys.pair(self._nonce, kept_with=" ".join(rows))
        return self._pair.card()

    def masks(self, hellos: Mapping[str, Hello], run: str) -> Masks | None:
        """The hub's masks, when all hubs have introduced themselves."""
        if self._pair is None:
            return None
        try:
            secrets = {
                hub: self._pair.agree(hub, hellos[hub].nonce, hellos[hub].card)
                for hub in self._group
                if hub != self._own
            }
        except ForgedCardError as error:
            raise IncompatibleParties(str(error)) from None
        return Masks(self._own, secrets, self._group, run)


def is_other_key(before: Hello | Enrolment, now: Hello | Enrolment) -> bool:
    """Whether a party that introduces itself again has another key than before."""
    return _public(before) != _public(now)


def _public(party: Hello | Enrolment) -> bytes | None:
    return None if party.card is None else party.card.public
