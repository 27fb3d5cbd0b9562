"""How long a hub worked and how long it waited, over the rounds of a run: ``timeline.json`` in its folder.

Nothing depends on this file but what people look at. It stays small however long the run is: when there are too many
spans of rounds, neighbours become one.
"""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Self

import msgspec

from tdcd.records.files import read_plain

TIMELINE = "timeline.json"
MOST_SPANS = 256
MOST_BYTES = 64 << 20

# A number that is far too large would make sums overflow.
Counted = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Span(msgspec.Struct):
    """Some rounds in a row; what is neither work nor waiting, the hub did not run."""

    first: Counted
    """Its first round."""
    last: Counted
    start: Seconds
    """Since the epoch, by the clock of the hub's machine."""
    end: Seconds
    worked: Seconds = 0.0
    """While its clients or the hub itself had something to do."""
    waited: dict[str, Seconds] = {}
    """By party: while there was nothing to do but wait for it. Time for which several were missing is divided."""

    def joined(self, after: "Span") -> "Span":
        """This span and the next one as one."""
        waited = Counter(self.waited)
        waited.update(after.waited)
        first, last = min(self.first, after.first), max(self.last, after.last)
        return Span(first, last, self.start, after.end, self.worked + after.worked, dict(waited))


class Timeline(msgspec.Struct):
    """The rounds of one hub, in the order in which it went through them."""

    hub: str
    run: str
    """A nonce of this process of the hub."""
    rounds_per_span: Annotated[int, msgspec.Meta(ge=1)] = 1
    spans: list[Span] = []

    def add(self, round_index: int, start: float, end: float, waited_for: Sequence[str] = ()) -> None:
        """Add time of a round, work unless it ``waited_for`` a party; a gap since what was added last stays a gap."""
        span = self.spans[-1] if self.spans else None
        if span is None or start > span.end or not span.last <= round_index < span.first + self.rounds_per_span:
            span = Span(round_index, round_index, start, start)
            self.spans.append(span)
            self._shorten()
            span = self.spans[-1]
        span.last, span.end = round_index, end
        if not waited_for:
            span.worked += end - start
        for party in waited_for:
            span.waited[party] = span.waited.get(party, 0.0) + (end - start) / len(waited_for)

    def _shorten(self) -> None:
        """Make one span of two neighbours where there are too many."""
        if len(self.spans) > MOST_SPANS:
            pairs = (self.spans[index : index + 2] for index in range(0, len(self.spans), 2))
            self.spans = [reduce(Span.joined, pair) for pair in pairs]
            self.rounds_per_span *= 2

    @property
    def end(self) -> float:
        """When the last span ended; 0 if there is none."""
        return self.spans[-1].end if self.spans else 0.0

    @property
    def worked(self) -> float:
        """Seconds of work."""
        return sum(span.worked for span in self.spans)

    @property
    def waited(self) -> dict[str, float]:
        """Seconds of waiting by party, the longest first."""
        total: Counter[str] = Counter()
        for span in self.spans:
            total.update(span.waited)
        return dict(total.most_common())

    def shares(self, cells: int) -> list[tuple[float, float]]:
        """The time from the first round to now in so many equal cells: the fractions of work and of waiting in each."""
        if not self.spans or self.end <= self.spans[0].start:
            return []
        begin = self.spans[0].start
        width = (self.end - begin) / cells
        sums = [[0.0, 0.0] for _ in range(cells)]
        for span in self.spans:
            length = max(span.end - span.start, 1e-9)
            low, high = (span.start - begin) / width, (span.end - begin) / width
            for cell in range(int(low), min(cells, int(high) + 1)):
                part = (min(high, cell + 1) - max(low, cell)) * width / length
                sums[cell][0] += part * span.worked / width
                sums[cell][1] += part * sum(span.waited.values()) / width
        return [(worked, waited) for worked, waited in sums]

    def to_json(self) -> bytes:
        """The timeline as the content of its file."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; the error says that nothing else depends on it."""
        try:
            timeline = msgspec.json.decode(read_plain(path, MOST_BYTES), type=cls)
            timeline._check()
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged and is not used: {error}; the run itself is not affected") from None
        return timeline

    def _check(self) -> None:
        reached = 0.0
        for index, span in enumerate(self.spans):
            if not reached <= span.start <= span.end or span.first > span.last:
                raise ValueError(f"spans[{index}] ends before it begins, or begins before the one before ends")
            reached = span.end
