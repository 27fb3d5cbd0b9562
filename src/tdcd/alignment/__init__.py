"""Which ids all silos have: the samples that a federation can train on.

Two methods. ``digests``, for parties that trust each other, compares keyed digests of all ids. ``psi`` is a private set
intersection for parties that do not. What each silo learns of the others is in :class:`Alignment`.
"""

from tdcd.alignment.alignment import Alignment
from tdcd.alignment.messages import METHODS, AlignmentError, Method, Outgoing

__all__ = ["METHODS", "Alignment", "AlignmentError", "Method", "Outgoing"]
