"""Chains of signed entries, one per party, in files: whoever has the files can check them.

An entry names the digest of the one before, so that none can be taken out, changed or put in another order. A party
that signs two different entries for one place is found out by all who have seen the other one.
"""

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tdcd.core.words import one_line
from tdcd.records.files import plain_lines, write_all
from tdcd.runtime.certificates.agreement import Authority, ForgedCardError
from tdcd.runtime.certificates.check import role_of
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.standing.statements import NOTHING, LogEntry, SignedEntry, Statement, read_line, written

SKEW_S = 300
"""How far the clocks of two machines may differ."""
MOST_BYTES = 64 << 20
"""The largest chain of a party."""


class EntrySigner(Protocol):
    """Signs entries of one party."""

    def sign(self, text: bytes) -> tuple[bytes, bytes]:
        """The party's certificate, and its signature."""


class Log:
    """The chains of all parties of a federation.

    Args:
        folder: where the chains' files are.
        federation: the digest that every entry names.
        parties: whose chains there are.
        authority: who has issued the parties' certificates.
    """

    def __init__(
        self,
        folder: Path,
        federation: str,
        parties: Collection[str],
        authority: Authority,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the files, and check every entry.

        Raises:
            ValueError: an entry of a file is not what its party signed.
        """
        self.federation, self.authority = federation, authority
        self.chains: dict[str, list[SignedEntry]] = {party: [] for party in sorted(parties)}
        self._folder, self._clock = folder, clock
        self._sizes = dict.fromkeys(self.chains, 0)
        self._certificates: dict[bytes, bytes] = {}
        """Each once, as it stands in many entries."""
        self.refresh()

    @property
    def counts(self) -> dict[str, int]:
        """How many entries of each party are here."""
        return {party: len(chain) for party, chain in self.chains.items()}

    def refresh(self) -> bool:
        """Read what another process has added to the files; whether there was something."""
        return sum(self._read(party) for party in self.chains) > 0

    def admit(self, parties: Collection[str]) -> bool:
        """Take entries of further parties from now on; whether there was a party that is new."""
        new = sorted({*parties} - {*self.chains})
        self.chains |= {party: [] for party in new}
        self._sizes |= dict.fromkeys(new, 0)
        for party in new:
            self._read(party)
        return bool(new)

    def accept(self, *entries: SignedEntry, sender: str = "") -> bool:
        """Keep the next entries of parties; whether one is new.

        Args:
            entries: what one party has sent.
            sender: that party. What a client brings of a client that was revoked is refused: of what it signed before,
                its hub has passed everything on.

        Raises:
            RejectedMessage: one is not what the party signed, or the party signed something else before. Those before
                it are kept.
        """
        if all(self._is_here(signed) for signed in entries):
            return False
        new: dict[str, bytes] = {}
        with self._locked():
            self.refresh()
            try:
                for signed in entries:
                    party = signed.entry.party
                    is_of_clients = role_of(sender) == role_of(party) == "client"
                    if self._is_next(signed, past=not is_of_clients):
                        new[party] = new.get(party, b"") + self._add(signed, written(signed))
            finally:
                self._write(new)
        return bool(new)

    def append(self, party: str, signer: EntrySigner, statement: Statement) -> SignedEntry:
        """Sign a statement as the party's next entry, and keep it; earlier entries stay."""
        with self._locked():
            self.refresh()
            chain = self.chains[party]
            previous = chain[-1].entry if chain else None
            now = max(int(self._clock()), previous.time if previous else 0)
            before = previous.digest if previous else NOTHING
            entry = LogEntry(self.federation, party, len(chain), before, now, statement)
            signed = SignedEntry(entry, *signer.sign(entry.signed))
            self._write({party: self._add(signed, written(signed))})
        return signed

    def lacking(self, counts: Mapping[str, int]) -> list[SignedEntry]:
        """What another party does not have yet of the chains that it knows, each in its order."""
        return [entry for party, chain in self.chains.items() if party in counts for entry in chain[counts[party] :]]

    def _is_here(self, signed: SignedEntry) -> bool:
        """Whether it is here already, signature and all: it was checked when it came."""
        chain, number = self.chains.get(signed.entry.party, []), signed.entry.number
        return number < len(chain) and chain[number] == signed

    def _is_next(self, signed: SignedEntry, *, past: bool = True) -> bool:
        if self._is_here(signed):
            return False
        entry = signed.entry
        where = f"entry {entry.number} of {entry.party}"
        if entry.party not in self.chains:
            raise RejectedMessage(f"{where} is of no party of this federation")
        if entry.federation != self.federation:
            raise RejectedMessage(f"{where} was signed for another federation")
        chain = self.chains[entry.party]
        if entry.number > len(chain):
            return False
        moment = datetime.fromtimestamp(entry.time, UTC)
        try:
            self.authority.check(entry.party, entry.signed, signed, where, moment, past=past)
        except ForgedCardError as error:
            raise RejectedMessage(str(error)) from None
        if entry.number < len(chain):
            if chain[entry.number].entry != entry:
                raise RejectedMessage(f"{where} is signed, but {entry.party} signed another one in its place before")
            return False
        previous = chain[-1].entry if chain else None
        if entry.previous != (previous.digest if previous else NOTHING):
            raise RejectedMessage(f"{where} does not follow the entry before it")
        if previous and entry.time < previous.time:
            raise RejectedMessage(f"{where} is older than the entry before it")
        if self._sizes[entry.party] > MOST_BYTES:
            raise RejectedMessage(f"{where} is one too many: the chain has {self._sizes[entry.party]} bytes")
        if entry.time > self._clock() + SKEW_S:
            raise RejectedMessage(f"{where} is of the future: compare the machines' clocks")
        return True

    def _file(self, party: str) -> Path:
        return self._folder / f"{party}.jsonl"

    def _read(self, party: str) -> bool:
        path = self._file(party)
        if not path.exists() or path.stat().st_size == self._sizes[party]:
            return False
        before = self._sizes[party]
        for number, line in plain_lines(path, before, len(self.chains[party]) + 1):
            try:
                signed = read_line(line)
                if signed.entry.party != party or not self._is_next(signed):
                    raise RejectedMessage(f"it is not entry {number - 1} of {party}")
            except RejectedMessage as error:
                raise ValueError(f"{path}, line {number}: {one_line(str(error), 300)}") from None
            self._add(signed, line)
        return self._sizes[party] > before

    def _add(self, signed: SignedEntry, line: bytes) -> bytes:
        """Put an entry at the end of its chain; the end of the chain's file, if it is not there yet."""
        party, certificate = signed.entry.party, self._certificates.setdefault(signed.certificate, signed.certificate)
        self.chains[party].append(SignedEntry(signed.entry, certificate, signed.signature))
        self._sizes[party] += len(line) + 1
        return line + b"\n"

    def _write(self, ends: Mapping[str, bytes]) -> None:
        """Make entries durable that were added; those that a disk does not take are taken back."""
        rest = dict(ends)
        try:
            for party, text in ends.items():
                file = os.open(self._file(party), os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    # What a crash has left of a line is none.
                    os.ftruncate(file, self._sizes[party] - len(text))
                    os.lseek(file, 0, os.SEEK_END)
                    write_all(file, text)
                    os.fsync(file)
                finally:
                    os.close(file)
                del rest[party]
        except OSError:
            for party, text in rest.items():
                del self.chains[party][-text.count(b"\n") :]
                self._sizes[party] -= len(text)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No two processes write at a time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)
