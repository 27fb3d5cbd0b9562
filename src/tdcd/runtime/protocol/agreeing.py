"""How hubs come to share masks: each two of those whose parts are added up agree on a secret."""

from collections.abc import Mapping, Sequence

from tdcd.config.protection import FEWEST
from tdcd.core.words import counted
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
        self._are_used = job.config.exchange.protect == "mask"
        self._pair: KeyPair | None = None

    def card(self, rows: Sequence[str]) -> Card | None:
        """The hub's public key, which goes with its clients' ``rows``.

        The run is named after all hubs' keys, so that with other rows, anywhere, it is another run with other masks.
        """
        if not self._are_used:
            return None
        self._pair = self._keys.pair(self._nonce, kept_with=" ".join(rows))
        return self._pair.card()

    def masks(self, hellos: Mapping[str, Hello], run: str) -> Masks | None:
        """The hub's masks, when all hubs have introduced themselves."""
        if self._pair is None or self._own not in self._group:
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


def refuse_few_blocks(job: Job, hub: str, rows: Sequence[int]) -> None:
    """Refuse masked blocks of a silo in which too few clients have training rows: a sum would be of their blocks."""
    having = sum(count > 0 for count in rows)
    if job.config.exchange.protect_blocks and having < FEWEST:
        raise IncompatibleParties(
            f"exchange.protect_blocks = true: training rows are at only {counted(having, 'client')} of {hub}, and "
            f"{FEWEST} are needed; the sum would show a client's block"
        )


def is_other_key(before: Enrolment, now: Enrolment) -> bool:
    """Whether a client that introduces itself again has another key than before."""
    return _public(before) != _public(now)


def _public(client: Enrolment) -> bytes | None:
    return None if client.card is None else client.card.public
