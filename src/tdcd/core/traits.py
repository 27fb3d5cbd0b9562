"""Traits: what a part of the family says of itself, so that no other module asks which part it is.

============== ======================================================================================================
trait          meaning
============== ======================================================================================================
``is_plain``   it does what Algorithm 1 does: phi and blocks as they are, the average, plain steps, all clients
``covered_as`` the parts of a variant that it may be under Theorem 1
``few_bits``   the bits of each number that it sends
``excludes``   the other parts that it does not go with, and why: see :class:`Excludes`
============== ======================================================================================================
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tdcd.core.variant import Variant


def stated(part: Any, trait: str, default: Any = False) -> Any:
    """A trait as the part's own class states it; a class that only inherits from that one may do anything."""
    return getattr(part, trait) if trait in vars(type(part)) else default


def is_plain(part: Any) -> bool:
    """Whether a part does what Algorithm 1 does."""
    return bool(stated(part, "is_plain"))


@runtime_checkable
class Excludes(Protocol):
    """A part that does not go with every other one."""

    def excludes(self, variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
        """The names of the variant's parts that it does not go with, each with the reason."""
        ...


class Clash(NamedTuple):
    """Two parts of a variant that do not go together."""

    part: Any
    other: str
    """The name of the other part in a variant."""
    value: Any
    """The other part itself."""
    reason: str

    @property
    def sentence(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.part} does not go with {self.other} = {self.value}: {self.reason}; leave one of them out"
