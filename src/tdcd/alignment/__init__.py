"""Which of a silo's ids the others have, by private set intersection; :class:`Alignment` says what each silo learns."""

from tdcd.alignment.alignment import Alignment, BlindedIds
from tdcd.alignment.messages import ANSWERS, AlignmentError, Answer, Outgoing

__all__ = ["ANSWERS", "Alignment", "AlignmentError", "Answer", "BlindedIds", "Outgoing"]
