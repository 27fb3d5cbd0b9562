"""Which hubs are sent which message of an exchange: all of them or, if one silo alone has labels, a star around it."""

from dataclasses import dataclass

from tdcd.runtime.protocol.label_messages import FiguresPart, SlopePart
from tdcd.runtime.protocol.messages import PhiPart, ScoresPart

_TO_LABELS = (PhiPart.tag(), ScoresPart.tag())
_FROM_LABELS = (SlopePart.tag(), FiguresPart.tag())


@dataclass(frozen=True)
class Audience:
    """The hubs, and the only one that has labels."""

    hubs: tuple[str, ...]
    """In silo order."""
    label_hub: str | None = None
    """None if all have labels."""

    def is_sent(self, kind: str, sender: str, receiver: str) -> bool:
        """Whether a party is a hub that sends another one messages of this kind, called as on the wire."""
        if sender not in self.hubs or receiver not in self.hubs:
            return False
        if kind in _FROM_LABELS:
            return sender == self.label_hub != receiver
        if kind in _TO_LABELS and self.label_hub is not None:
            return receiver == self.label_hub != sender
        return sender != receiver

    def receivers(self, kind: str, sender: str) -> list[str]:
        """The hubs that a hub sends messages of this kind to, in silo order."""
        return [hub for hub in self.hubs if self.is_sent(kind, sender, hub)]

    @property
    def heard_by_several(self) -> tuple[str, ...]:
        """The hubs that tell several others the same, of which digests are compared.

        With labels everywhere this finds a hub that told two others different things. In the star it finds a mistake
        of the hub with the labels, not a lie: that hub alone carries digests between the others.
        """
        return self.hubs if self.label_hub is None else (self.label_hub,)
