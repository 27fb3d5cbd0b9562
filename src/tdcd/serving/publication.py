"""Phi that a silo publishes ahead: a file with phi of the ids that all silos have, signed, with an expiry.

It is a safetensors file. An id is a place in the list of common ids, which all silos have from the same alignment, in
the order of their characters: no id is in the file, and no digest of a single one.
"""

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.core.words import counted
from tdcd.federation import hub_of
from tdcd.prediction.scores import SiloScores
from tdcd.records.files import read_plain, write_durably
from tdcd.records.model_file import read_metadata
from tdcd.runtime.certificates.agreement import Authority, Certified, ForgedCardError, RevokedCardError
from tdcd.runtime.process.predict import ModelOf
from tdcd.tables.dialect import Dialect
from tdcd.tables.errors import TableError

KEY = "tdcd published phi"
MOST_BYTES, MOST_HEADER_BYTES = 8 << 30, 1 << 16
DAY_S = 24 * 3600
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Word = Annotated[str, Meta(max_length=200)]
UnixSeconds = Annotated[int, Meta(ge=0, lt=2**37)]


class PublicationHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a silo signs."""

    silo: Word
    run: Word
    """The hubs' name of the training, and how that ended."""
    status: Word
    model: Word
    """A digest of the silo's part of the model, as in its manifest."""
    ids: Sha256
    """A keyed digest of the list of common ids."""
    arrays: Sha256
    """A digest of places and phi."""
    published: UnixSeconds
    expires: UnixSeconds

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        return b"tdcd published phi 1\n" + _encoder.encode(self)


class SignedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement with the signature of the silo's hub."""

    statement: PublicationHeader
    certificate: Annotated[bytes, Meta(max_length=1 << 14)]
    """In DER form."""
    signature: Annotated[bytes, Meta(max_length=1 << 10)]


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(SignedHeader)


class CommonIds:
    """The ids that all silos have, as ``tdcd align`` writes them, and what shows that two parties mean the same."""

    def __init__(self, path: Path, dialect: Dialect, secret: bytes) -> None:
        """Read a text file with one id per line.

        Args:
            secret: of the federation's hubs.
        """
        try:
            lines = read_plain(path, MOST_BYTES).decode().splitlines()
        except UnicodeDecodeError:
            raise TableError([f"{path} is no text: --ids takes the file that tdcd align wrote"]) from None
        self.path = path
        self.ids = sorted({sample for sample in dialect.as_ids(lines) if sample})
        if not self.ids:
            raise TableError([f"{path} has no ids: --ids takes the file that tdcd align wrote"])
        self._secret = secret

    def digest(self, run: str) -> str:
        """A keyed digest of the whole list, for one run: who lacks the secret can test no guess."""
        return hmac.new(self._secret, json.dumps([KEY, run, self.ids]).encode(), hashlib.sha256).hexdigest()


class Publication(NamedTuple):
    """What a silo's file says, once it was checked."""

    signed: SignedHeader
    scores: SiloScores

    @property
    def statement(self) -> PublicationHeader:
        """What the silo signed."""
        return self.signed.statement

    def refusal(self, authority: Authority) -> str:
        """Why the list of revoked certificates, as it is now, does not let it be used; an empty text if it does."""
        silo = self.statement.silo
        try:
            authority.check(hub_of(silo), self.statement.signed, self.signed, f"the phi of silo '{silo}'")
        except RevokedCardError as error:
            return str(error)
        except ForgedCardError:
            pass  # A certificate may expire before phi does; the rest was checked when the file was read.
        return ""

    def check_newer(self, former: "Publication", where: str) -> None:
        """Refuse what the silo published before the former one, which is in use; the same file may be read again."""
        age = former.statement.published - self.statement.published
        if age > 0:
            raise ValueError(
                f"{where}: phi of silo '{self.statement.silo}' was published {counted(age, 'second')} before what is "
                "in use: get the file that the silo published last"
            )


def publish(
    path: Path,
    silo: str,
    scores: SiloScores,
    common: CommonIds,
    model: ModelOf,
    digest: str,
    days: float,
    own: Certified,
) -> Publication:
    """Write a silo's phi of those common ids that it has rows of.

    Args:
        digest: of the silo's part of the model.
        days: for how long the file may be used.
        own: signs for the silo's hub.
    """
    row_of = {sample: row for row, sample in enumerate(scores.ids)}
    places = np.array([place for place, sample in enumerate(common.ids) if sample in row_of], np.int64)
    ids = [common.ids[place] for place in places.tolist()]
    phi = np.ascontiguousarray(scores.phi[[row_of[sample] for sample in ids]])
    if not ids:
        raise TableError([f"none of the {counted(len(common.ids), 'id')} in {common.path} is in the new rows"])
    now = int(time.time())
    statement = PublicationHeader(
        silo,
        str(model.run),
        str(model.status),
        digest,
        common.digest(str(model.run)),
        digest_of_arrays(places, phi),
        now,
        now + round(days * DAY_S),
    )
    signed = SignedHeader(statement, *own.sign(statement.signed))
    content = save({"places": places, "phi": phi}, {KEY: _encoder.encode(signed).decode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, content)
    return Publication(signed, SiloScores(ids, phi))


def read_publication(
    path: Path, authority: Authority, common: CommonIds, model: ModelOf, width: int, dtype: str
) -> Publication:
    """What :func:`publish` wrote, if it is what the silo signed, of this run and these ids.

    It may have expired, and its certificate may be revoked: see :meth:`Publication.refusal`.

    Args:
        model: which training this party's own part is of.
        width: of phi.
        dtype: of phi.
    """
    content = read_plain(path, MOST_BYTES)
    try:
        if int.from_bytes(content[:8], "little") > MOST_HEADER_BYTES:
            raise ValueError("its header is too large")
        signed = _decoder.decode(read_metadata(content)[KEY])
        arrays = load(content)
    except (SafetensorError, msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not phi that a silo published, or is damaged: {error}") from None
    statement, where = signed.statement, f"{path}, phi of silo '{signed.statement.silo}',"
    authority.check(hub_of(statement.silo), statement.signed, signed, where, past=True)
    places, phi = _arrays(arrays, where, statement)
    if (statement.run, statement.status) != (model.run, model.status):
        raise ValueError(
            f"{where} is of another run: {statement.run} ({statement.status}), not {model.run} ({model.status}); "
            "the silo has to publish from the run folder of this run"
        )
    if statement.ids != common.digest(statement.run):
        raise ValueError(
            f"{where} is about other ids than {common.path}: both parties take what the same tdcd align wrote as --ids"
        )
    if len(places) and places[-1] >= len(common.ids):
        raise ValueError(f"{where} has places past the {counted(len(common.ids), 'common id')}")
    if phi.shape != (len(places), width) or str(phi.dtype) != dtype:
        raise ValueError(f"{where} is {phi.dtype}{[*phi.shape]}, but the model needs {dtype}[{len(places)}, {width}]")
    return Publication(signed, SiloScores([common.ids[place] for place in places.tolist()], phi))


def _arrays(
    arrays: dict[str, NDArray[Any]], where: str, statement: PublicationHeader
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places, which rise, and phi, if they are what was signed."""
    places, phi = arrays.get("places"), arrays.get("phi")
    if len(arrays) != 2 or places is None or phi is None or digest_of_arrays(places, phi) != statement.arrays:
        raise ValueError(f"{where} was altered after it was signed: get the file again")
    if places.dtype != np.int64 or places.ndim != 1 or phi.ndim != 2 or not np.isfinite(phi).all():
        raise ValueError(f"{where} holds something other than finite numbers by place")
    if len(places) and (places[0] < 0 or (np.diff(places) <= 0).any()):
        raise ValueError(f"{where} has places that do not rise")
    if len(phi) != len(places):
        raise ValueError(f"{where} has {counted(len(places), 'place')} and {counted(len(phi), 'row')}")
    return places, phi


def digest_of_arrays(places: NDArray[Any], phi: NDArray[Any]) -> str:
    """SHA-256 of their types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in (places, phi):
        digest.update(json.dumps([array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
