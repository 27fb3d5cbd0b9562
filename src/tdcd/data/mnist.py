"""MNIST, from its four original files."""

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tdcd.data.download import DownloadError, download
from tdcd.data.sources import DataUnavailable, unavailable
from tdcd.data.table import Table

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""The md5 of each file's unpacked content."""


def mnist(folder: Path) -> Table:
    """60,000 training and, after them, 10,000 test images ``[28, 28]`` of digits, with pixels from 0 to 1.

    The files are looked for in ``folder/mnist``, gzipped or not; the absent ones are downloaded into it.
    :meth:`Table.split` gives the data set's own split.
    """
    train_images, train_labels, test_images, test_labels = (_array(_content(folder / "mnist", name)) for name in FILES)
    return Table(
        "mnist",
        np.divide(np.concatenate([train_images, test_images]), 255, dtype=np.float32),
        np.concatenate([train_labels, test_labels]).astype(np.int32),
        "multiclass",
        held_out=np.arange(len(train_labels) + len(test_labels)) >= len(train_labels),
        value_bytes=1,
    )


def _content(folder: Path, name: str) -> bytes:
    """What the file holds, unpacked and checked; downloaded first if need be."""
    places = (folder / f"{name}.gz", folder / name)
    path = next((place for place in places if place.is_file()), None)
    try:
        if path is None:
            path = places[0]
            download([f"{mirror}{path.name}" for mirror in MIRRORS], path, lambda file: _unpacked(file, FILES[name]))
        return _unpacked(path, FILES[name])
    except DownloadError as error:
        by_hand = f"put {', '.join(f'{file}.gz' for file in FILES)} from one of these addresses into {folder}"
        raise unavailable(
            f"the MNIST file {places[0].name}", looked=places, tried=error.tried, by_hand=by_hand
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataUnavailable(
            f"{path} cannot be used: {error}; replace it, or delete it to download it again"
        ) from error


def _unpacked(path: Path, md5: str) -> bytes:
    """The content of a file that may be gzipped, whatever its name says: browsers unpack and keep the name."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise OSError(f"the md5 of its unpacked content is {digest}, not {md5}")
    return content


def _array(content: bytes) -> NDArray[np.uint8]:
    """An idx file's array of bytes: a type code, the number of axes, their big-endian lengths, the values."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
