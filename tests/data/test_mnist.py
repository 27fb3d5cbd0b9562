import errno
import gzip
import hashlib

import numpy as np
import pytest

from tdcd.data import DataUnavailable, data_folder, load
from tdcd.data import mnist as module

NAMES = tuple(module.FILES)


def idx(array):
    """An array of bytes in the files' own format."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()


@pytest.fixture
def files(monkeypatch):
    """Four small files of MNIST's kind, unpacked, which the loader takes for the real ones."""
    rng = np.random.default_rng(0)
    arrays = []
    for rows in (30, 10):
        arrays += [rng.integers(256, size=(rows, 28, 28), dtype=np.uint8), np.arange(rows, dtype=np.uint8) % 10]
    contents = dict(zip(NAMES, map(idx, arrays), strict=True))
    monkeypatch.setattr(module, "FILES", {name: hashlib.md5(data).hexdigest() for name, data in contents.items()})
    return contents


def check(table, files):
    pixels = b"".join(files[name][16:] for name in NAMES[::2])
    assert (table.name, table.task, table.num_classes) == ("mnist", "multiclass", 10)
    assert table.features.dtype == np.float32
    expected = np.frombuffer(pixels, np.uint8).reshape(40, 28, 28) / 255
    np.testing.assert_allclose(table.features, expected, rtol=1e-6)
    assert list(table.labels) == [row % 10 for row in range(30)] + list(range(10))
    train, test = table.split(0.5, seed=1)
    assert (len(train.labels), len(test.labels)) == (30, 10)
    assert (test.features == table.features[30:]).all()


def test_absent_files_are_downloaded_once(files, mirror, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MIRRORS", (mirror.address,))
    mirror.files = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    check(load("mnist", folder=tmp_path), files)
    assert mirror.requests == [f"{name}.gz" for name in NAMES]
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(f"{name}.gz" for name in NAMES)
    check(load("mnist", folder=tmp_path), files)
    assert len(mirror.requests) == 4


def test_hand_placed_files_may_be_unpacked_even_under_the_packed_name(files, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MIRRORS", ())
    (tmp_path / "mnist").mkdir()
    for index, name in enumerate(NAMES):
        (tmp_path / "mnist" / f"{name}{'.gz' if index < 2 else ''}").write_bytes(files[name])
    check(load("mnist", folder=tmp_path), files)


def test_a_read_only_folder_is_enough(files, monkeypatch, shelf, read_only):
    monkeypatch.setattr(module, "MIRRORS", ())
    (shelf / "mnist").mkdir()
    for name in NAMES:
        (shelf / "mnist" / name).write_bytes(files[name])
    with read_only(shelf):
        table = load("mnist", folder=shelf)
    check(table, files)


def test_absent_files_and_a_read_only_folder(files, mirror, monkeypatch, shelf, read_only):
    monkeypatch.setattr(module, "MIRRORS", (mirror.address,))
    with (
        read_only(shelf),
        pytest.raises(DataUnavailable, match=r"tried http://127\S+gz: \[Errno 13\] Permission denied"),
    ):
        load("mnist", folder=shelf)


def test_absent_and_offline(mirror, down, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MIRRORS", (mirror.address, down))
    with pytest.raises(DataUnavailable) as caught:
        load("mnist", folder=tmp_path)
    packed = [f"{name}.gz" for name in NAMES]
    assert str(caught.value).splitlines() == [
        f"the MNIST file {packed[0]} is not in the data folder and could not be downloaded",
        f"  looked for {tmp_path / 'mnist' / packed[0]}",
        f"  looked for {tmp_path / 'mnist' / NAMES[0]}",
        f"  tried {mirror.address}{packed[0]}: HTTP Error 404: Not Found",
        f"  tried {down}{packed[0]}: [Errno {errno.ECONNREFUSED}] Connection refused",
        f"  by hand: put {', '.join(packed)} from one of these addresses into {tmp_path / 'mnist'}",
        "  (the environment variable TDCD_DATA names another data folder)",
    ]


@pytest.mark.parametrize("damage", [lambda data: gzip.compress(data)[:-9], lambda data: data[:-1]])
def test_a_damaged_file_is_named_and_kept(damage, files, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MIRRORS", ())
    path = tmp_path / "mnist" / NAMES[0]
    path.parent.mkdir()
    path.write_bytes(damage(files[NAMES[0]]))
    with pytest.raises(DataUnavailable) as caught:
        load("mnist", folder=tmp_path)
    assert str(caught.value).startswith(f"{path} cannot be used: ")
    assert str(caught.value).endswith("; replace it, or delete it to download it again")
    assert path.exists()


def test_the_real_thing():
    folder = data_folder() / "mnist"
    if not all((folder / f"{name}.gz").exists() or (folder / name).exists() for name in NAMES):
        pytest.skip(f"MNIST is not in {folder}: name its parent in TDCD_DATA")
    train, test = load("mnist").split()
    assert (train.features.shape, test.features.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The mean and standard deviation by which everybody normalises MNIST.
    assert train.features.mean(dtype=np.float64) == pytest.approx(0.1307, abs=1e-4)
    assert train.features.std(dtype=np.float64) == pytest.approx(0.3081, abs=1e-4)
