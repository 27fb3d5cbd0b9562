r"""Encrypted slopes: what the hub with the labels, the clients of other silos and their hubs do with ciphertexts.

The form is :mod:`tdcd.core.codecs.encrypted`; keys, encryption, products and decryption are Microsoft SEAL's, by way
of TenSEAL. Nothing that comes from the network is parsed: ciphertexts travel as arrays of whole numbers, whose shapes
are checked when they arrive, and the library checks that each is below its prime.

A ciphertext of a product shows to the holder of the key what was multiplied, in its second polynomial and in its noise.
So a client adds a fresh encryption of zero, made of the one that came with the key: times a random ternary polynomial,
plus random errors. Then it leaves out the two last primes. That divides the noise by :math:`2^{100}`, and what is left
of it is below :math:`2^{-60}`: of a product nothing stays but its remainder, which the hub's mask hides.

All that is random follows from a secret of the party and from what it is for, the content counted in. So a party that
comes back sends the same bytes again, and nothing random is used for two different contents.
"""

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from tdcd.core.codecs.encrypted import DEGREE, KEY_BITS, MODULUS_BITS, PLAIN_BITS, SEED_BYTES, EncryptedSums
from tdcd.runtime.certificates.agreement import derive
from tdcd.runtime.messages.structure import Arrays
from tdcd.runtime.messages.wire import RejectedMessage

MISSING = (
    "federation.protect_labels = 'encrypt': TenSEAL, which encrypts, is not installed here: pip install 'tdcd[encrypt]'"
)
Whole = NDArray[np.int64]
_HEADER = struct.Struct("<HBBBBHQ")
"""Of SEAL's files: magic number, its own size, version (2), compression, reserved, size of the file."""
_MAGIC, _COMPRESSED = 0xA15E, 2
_PRIMES = len(MODULUS_BITS)
_ERRORS = 21
"""Errors are differences of so many random bits: of standard deviation 3.2, as in the standard."""


def require() -> None:
    """Refuse to start without the library."""
    try:
        import tenseal.sealapi  # noqa: F401, PLC0415
    except ImportError:
        raise ValueError(MISSING) from None


def seed_of(secret: bytes, *purposes: str, content: bytes = b"") -> bytes:
    """Random bytes for a purpose, and for this content only."""
    return derive(secret, "tdcd encrypted slopes", *purposes, hashlib.sha256(content).hexdigest())


@lru_cache(maxsize=1)
def plain_modulus() -> int:
    """The largest prime of 48 bits that is 1 modulo 2n."""
    prime = (1 << PLAIN_BITS) // (2 * DEGREE) * (2 * DEGREE) + 1
    while prime >= 1 << PLAIN_BITS or not _is_prime(prime):
        prime -= 2 * DEGREE
    return prime


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test; with these bases it is certain below 2^64."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if all((power := power * power % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


@lru_cache(maxsize=1)
def _moduli() -> Any:
    """The primes that ciphertexts count modulo, and that of keys, which take the library long to find."""
    import tenseal.sealapi as seal  # noqa: PLC0415

    return seal.CoeffModulus.Create(DEGREE, [*MODULUS_BITS, KEY_BITS])


class Scheme:
    """The library with this scheme's parameters, and its objects as arrays."""

    def __init__(self, seed: bytes | None = None, *, only_encrypts: bool = False) -> None:
        """Take what all randomness of this context follows from: one ciphertext per context; None: nothing random.

        Args:
            only_encrypts: leave out what is needed for ciphertexts without their last primes, which takes half the
                time; what is encrypted is the same.
        """
        import tenseal.sealapi as seal  # noqa: PLC0415

        self.seal: Any = seal
        parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus(_moduli())
        parameters.set_plain_modulus(plain_modulus())
        if seed is not None:
            words = struct.unpack("<8Q", hashlib.sha512(seed).digest())
            parameters.set_random_generator(seal.Blake2xbPRNGFactory([*words]))
        self.primes = [int(prime.value()) for prime in parameters.coeff_modulus()[:_PRIMES]]
        self.context = seal.SEALContext(parameters, not only_encrypts, seal.SEC_LEVEL_TYPE.TC128)
        self.evaluator = seal.Evaluator(self.context)

    def _saved(self, thing: Any) -> bytes:
        """A thing of the library as it saves it, without header and compression."""
        with _file() as path:
            thing.save(path)
            saved = Path(path).read_bytes()
        header, body = _HEADER.unpack(saved[: _HEADER.size]), saved[_HEADER.size :]
        return pa.input_stream(pa.BufferReader(body), compression="zstd").read() if header[4] == _COMPRESSED else body

    def _loaded(self, kind: Any, body: bytes) -> Any:
        """A thing of the library, from what :meth:`_saved` gave."""
        with _file() as path:
            Path(path).write_bytes(_header(len(body)) + body)
            try:
                thing = kind()
                thing.load(self.context, path)
            except (RuntimeError, ValueError) as error:
                raise RejectedMessage(f"a ciphertext is damaged: {error}") from None
        return thing

    def plain(self, numbers: Whole) -> Any:
        """A plain polynomial with these coefficients."""
        words = np.mod(numbers, plain_modulus()).astype("<u8").tobytes()
        inner = struct.pack("<Q", len(numbers)) + words
        body = struct.pack("<4QQd", 0, 0, 0, 0, len(numbers), 1.0) + _header(len(inner)) + inner
        return self._loaded(self.seal.Plaintext, body)

    def coefficients(self, plain: Any) -> Whole:
        """The coefficients of a plain polynomial, from -t/2 to t/2."""
        words = np.frombuffer(self._saved(plain)[-8 * plain.coeff_count() :], "<i8")
        whole: Whole = np.zeros(DEGREE, np.int64)
        whole[: len(words)] = words
        half = plain_modulus() // 2
        return np.where(whole > half, whole - plain_modulus(), whole)

    def words(self, ciphertext: Any) -> Whole:
        """``[2, primes, n]``: a ciphertext's two polynomials."""
        shape = (2, ciphertext.coeff_modulus_size(), DEGREE)
        return np.frombuffer(self._saved(ciphertext)[-16 * shape[1] * DEGREE :], "<i8").reshape(shape)

    def ciphertext(self, words: Whole) -> Any:
        """A ciphertext from its two polynomials, modulo all primes or the first one."""
        return self._loaded(self.seal.Ciphertext, self._frames[words.shape[1]] + words.astype("<i8").tobytes())

    def halves(self, seeded: Any) -> tuple[Whole, NDArray[np.uint8]]:
        """The first polynomial of a fresh ciphertext, and the seed of the second one."""
        body, frame = self._saved(seeded), len(self._seeded_frame[0])
        first = np.frombuffer(body[frame : frame + 8 * _PRIMES * DEGREE], "<i8").reshape(_PRIMES, DEGREE)
        return first, np.frombuffer(body[-SEED_BYTES:], np.uint8)

    def expanded(self, first: Whole, seed: NDArray[np.uint8]) -> Any:
        """The ciphertext of :meth:`halves`."""
        before, after = self._seeded_frame
        body = before + first.astype("<i8").tobytes() + after + seed.tobytes()
        return self._loaded(self.seal.Ciphertext, body)

    def transformed(self, ciphertext: Any) -> Any:
        """The same ciphertext in the form in which products are made number by number."""
        self.evaluator.transform_to_ntt_inplace(ciphertext)
        return ciphertext

    def product(self, transformed: Any, numbers: Whole) -> Any:
        """A ciphertext in that form, times a plain polynomial that is not zero."""
        plain, product = self.plain(numbers), self.seal.Ciphertext()
        self.evaluator.transform_to_ntt_inplace(plain, self.context.first_parms_id())
        self.evaluator.multiply_plain(transformed, plain, product)
        return product

    @cached_property
    def _throwaway(self) -> Any:
        generator = self.seal.KeyGenerator(self.context)
        return self.seal.Encryptor(self.context, generator.secret_key())

    @cached_property
    def _frames(self) -> dict[int, bytes]:
        """What stands before the words of a ciphertext, by its number of primes: as the library has it here."""
        fresh, frames = self.seal.Ciphertext(), {}
        self._throwaway.encrypt_zero_symmetric(fresh)
        for number in range(_PRIMES, 0, -1):
            body = self._saved(fresh)
            frames[number] = body[: len(body) - 16 * number * DEGREE]
            if number > 1:
                self.evaluator.mod_switch_to_next_inplace(fresh)
        return frames

    @cached_property
    def _seeded_frame(self) -> tuple[bytes, bytes]:
        """What stands before the words of a fresh ciphertext, and between them and its seed."""
        body, size = self._saved(self._throwaway.encrypt_zero_symmetric()), 8 * _PRIMES * DEGREE
        before = len(self._frames[_PRIMES])
        return body[:before], body[before + size : -SEED_BYTES]


@contextmanager
def _file() -> Iterator[str]:
    """A file for what the library saves and loads: in memory, so that nothing is left of it; else for a moment."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("tdcd")
        try:
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.TemporaryDirectory(prefix="tdcd-") as folder:
        yield str(Path(folder) / "file")


def _header(size: int) -> bytes:
    return _HEADER.pack(_MAGIC, _HEADER.size, 4, 3, 0, 0, _HEADER.size + size)


@lru_cache(maxsize=1)
def scheme() -> Scheme:
    """The library, for what is not random."""
    return Scheme()


class SlopeKey:
    """The key of the hub with the labels: made of its secret and of the run, so that every run has another one."""

    def __init__(self, secret: bytes, run: str) -> None:
        """Take the hub's secret and the run."""
        require()
        self._secret, self._run = secret, run
        keys = Scheme(seed_of(secret, run, "key"))
        self._key = keys.seal.KeyGenerator(keys.context).secret_key()
        self._decryptor = keys.seal.Decryptor(keys.context, self._key)
        self._shared = keys

    def _encrypted(self, numbers: Whole, *purpose: str) -> tuple[Whole, NDArray[np.uint8]]:
        seed = seed_of(self._secret, self._run, *purpose, content=numbers.tobytes())
        fresh = Scheme(seed, only_encrypts=True)
        encryptor = fresh.seal.Encryptor(fresh.context, self._key)
        return scheme().halves(encryptor.encrypt_symmetric(fresh.plain(numbers)))

    @cached_property
    def public(self) -> Arrays:
        """What others need to hide what they answer."""
        first, seed = self._encrypted(np.zeros(1, np.int64), "zero")
        return {"zero": first, "zero_seed": seed}

    def slopes(self, round_index: int, whole: Whole) -> Arrays:
        """Whole slopes ``[B, C]``, encrypted."""
        each = [self._encrypted(whole[:, c], "slopes", str(round_index), str(c)) for c in range(whole.shape[1])]
        firsts, seeds = zip(*each, strict=True)
        return {"slopes": np.stack(firsts), "slopes_seed": np.stack(seeds)}

    def decrypted(self, form: EncryptedSums, batch_size: int, num_features: int, sums: Arrays) -> Whole:
        """``[D, C]``, from what a hub sent: numbers modulo t, from -t/2 to t/2."""
        outputs, answers, _ = sums["whole"].shape
        columns = form.columns(batch_size)
        places = batch_size * np.arange(1, columns + 1) - 1
        numbers = np.zeros((outputs, answers, columns), np.int64)
        for output in range(outputs):
            for answer in range(answers):
                words = np.zeros((2, 1, DEGREE), np.int64)
                # Where there are no sums, what comes out is of no use to anybody.
                words[0, 0, places], words[1, 0] = sums["sums"][output, answer], sums["whole"][output, answer]
                plain = self._shared.seal.Plaintext()
                self._decryptor.decrypt(scheme().ciphertext(words), plain)
                numbers[output, answer] = scheme().coefficients(plain)[places]
        return numbers.reshape(outputs, -1)[:, :num_features].T


class SlopeSums:
    """A client's side: sums of its features times slopes that it cannot read."""

    def __init__(self, form: EncryptedSums, secret: bytes, key: Arrays) -> None:
        """Take the client's secret, and what came with the key."""
        require()
        self.form, self._secret = form, secret
        self._zero = scheme().transformed(scheme().expanded(key["zero"], key["zero_seed"]))

    def of(self, run: str, round_index: int, batch_size: int, features: Whole, places: Any, sealed: Arrays) -> Arrays:
        """Whole features ``[n, D]`` of the samples at ``places`` of the minibatch, times encrypted slopes."""
        form, num_features = self.form, features.shape[1]
        columns, answers = form.columns(batch_size), form.answers(batch_size, num_features)
        halves = zip(sealed["slopes"], sealed["slopes_seed"], strict=True)
        slopes = [scheme().transformed(scheme().expanded(*each)) for each in halves]
        ends = batch_size * np.arange(1, columns + 1) - 1
        whole = np.zeros((len(slopes), answers, DEGREE), np.int64)
        sums = np.zeros((len(slopes), answers, columns), np.int64)
        content = hashlib.sha256()
        for array in (features, np.asarray(places, np.int64), sealed["slopes"], sealed["slopes_seed"]):
            content.update(np.ascontiguousarray(array).data)
        for answer in range(answers):
            polynomial = np.zeros(columns * batch_size, np.int64)
            for column in range(min(columns, num_features - answer * columns)):
                # The sample at place i meets its slope at the column's end.
                polynomial[ends[column] - places] = features[:, answer * columns + column]
            for output, encrypted in enumerate(slopes):
                seed = seed_of(self._secret, run, str(round_index), str(answer), str(output), content=content.digest())
                words = self._answer(encrypted, polynomial, seed)
                sums[output, answer], whole[output, answer] = words[0, 0, ends], words[1, 0]
        return {"whole": whole, "sums": sums}

    def _answer(self, slopes: Any, polynomial: Whole, seed: bytes) -> Whole:
        """A product, with a fresh encryption of zero, modulo the first prime."""
        library = scheme()
        evaluator = library.evaluator
        ternary, errors = _small(seed)
        hidden = library.product(self._zero, ternary)
        if polynomial.any():
            evaluator.add_inplace(hidden, library.product(slopes, polynomial))
        evaluator.transform_from_ntt_inplace(hidden)
        evaluator.add_inplace(hidden, library.ciphertext(errors[:, None] % np.array(library.primes)[:, None]))
        for _ in range(_PRIMES - 1):
            evaluator.mod_switch_to_next_inplace(hidden)
        return library.words(hidden)


def _small(seed: bytes) -> tuple[Whole, Whole]:
    """A random polynomial of -1, 0 and 1, and two of errors ``[2, n]``."""
    # Of a byte, the first 255 values are as many of each remainder.
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    ternary = np.zeros(0, np.int64)
    while len(ternary) < DEGREE:
        drawn = np.frombuffer(stream.update(bytes(DEGREE)), np.uint8)
        ternary = np.concatenate([ternary, drawn[drawn < 255].astype(np.int64) % 3 - 1])
    words = np.frombuffer(stream.update(bytes(16 * DEGREE)), "<u4").reshape(2, 2, DEGREE) >> np.uint32(32 - _ERRORS)
    ones = np.bitwise_count(words).astype(np.int64)
    return ternary[:DEGREE], ones[0] - ones[1]


def masks(secret: bytes, run: str, round_index: int, shape: tuple[int, ...], content: bytes) -> Whole:
    """Uniform numbers below t: a hub's mask of these sums, and of no others."""
    modulus, count = plain_modulus(), int(np.prod(shape))
    stream = Cipher(
        algorithms.ChaCha20(seed_of(secret, run, "mask", str(round_index), content=content), bytes(16)), mode=None
    ).encryptor()
    numbers = np.zeros(0, np.int64)
    while len(numbers) < count:
        drawn = np.frombuffer(stream.update(bytes(8 * max(count, 64))), "<u8") >> np.uint64(64 - PLAIN_BITS)
        numbers = np.concatenate([numbers, drawn[drawn < modulus].astype(np.int64)])
    return numbers[:count].reshape(shape)


def added(shares: Sequence[Arrays]) -> dict[str, Whole]:
    """The sum of what clients sent."""
    prime = scheme().primes[0]
    total = {name: np.zeros_like(array) for name, array in shares[0].items()}
    for share in shares:
        for name, array in share.items():
            total[name] = (total[name] + array) % prime
    return total


def masked(sums: Arrays, mask: Whole) -> dict[str, Whole]:
    """Encrypted sums with a mask below t added to each."""
    prime, modulus = scheme().primes[0], plain_modulus()
    scaled = np.array([(int(number) * prime + modulus // 2) // modulus for number in mask.ravel()], np.int64)
    return {**sums, "sums": (sums["sums"] + scaled.reshape(mask.shape)) % prime}


def unmasked(numbers: Whole, mask: Whole) -> Whole:
    """Sums from -t/2 to t/2, from masked ones."""
    modulus = plain_modulus()
    left: Whole = np.mod(numbers - mask, modulus)
    return np.asarray(np.where(left > modulus // 2, left - modulus, left))
