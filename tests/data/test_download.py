import errno
import gzip
import hashlib
from functools import partial

import pytest

from tdcd.data.download import DownloadError, download
from tdcd.data.mnist import _unpacked

pytestmark = pytest.mark.quick

CONTENT = bytes(range(256)) * 500
PACKED = gzip.compress(CONTENT)
CHECK = partial(_unpacked, md5=hashlib.md5(CONTENT).hexdigest())


def failure(addresses, path):
    with pytest.raises(DownloadError) as caught:
        download(addresses, path, CHECK)
    assert not path.exists()
    if path.parent.is_dir():
        assert list(path.parent.iterdir()) == []
    return caught.value.tried


def test_a_good_file_is_saved_as_it_is(mirror, tmp_path):
    mirror.files["a.gz"] = PACKED
    download([f"{mirror.address}a.gz"], tmp_path / "new" / "a.gz", CHECK)
    assert (tmp_path / "new" / "a.gz").read_bytes() == PACKED
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.gz"]


def test_the_next_mirror_is_tried_when_one_is_down(mirror, down, tmp_path):
    mirror.files["a.gz"] = PACKED
    download([f"{down}a.gz", f"{mirror.address}b.gz", f"{mirror.address}a.gz"], tmp_path / "a.gz", CHECK)
    assert (tmp_path / "a.gz").read_bytes() == PACKED
    assert mirror.requests == ["b.gz", "a.gz"]


def test_a_connection_that_ends_early_is_a_failure(mirror, tmp_path):
    mirror.files["a.gz"] = PACKED
    mirror.missing_bytes = 7
    address = f"{mirror.address}a.gz"
    expected = f"it ended after {len(PACKED)} of {len(PACKED) + 7} bytes"
    assert failure([address], tmp_path / "a.gz") == {address: expected}


def test_a_short_gzip_is_a_failure(mirror, tmp_path):
    mirror.files["a.gz"] = PACKED[:-20]
    address = f"{mirror.address}a.gz"
    tried = failure([address], tmp_path / "a.gz")
    assert tried == {address: "Compressed file ended before the end-of-stream marker was reached"}


def test_a_damaged_gzip_is_a_failure(mirror, tmp_path):
    middle = len(PACKED) // 2
    mirror.files["a.gz"] = PACKED[:middle] + bytes(8) + PACKED[middle + 8 :]
    address = f"{mirror.address}a.gz"
    assert failure([address], tmp_path / "a.gz")[address]


def test_another_content_is_a_failure(mirror, tmp_path):
    mirror.files["a.gz"] = gzip.compress(CONTENT[1:])
    address = f"{mirror.address}a.gz"
    md5 = hashlib.md5(CONTENT[1:]).hexdigest()
    expected = f"the md5 of its unpacked content is {md5}, not {hashlib.md5(CONTENT).hexdigest()}"
    assert failure([address], tmp_path / "a.gz") == {address: expected}


def test_a_login_page_instead_of_the_file_is_a_failure(mirror, tmp_path):
    mirror.files["a.gz"] = b"<html>Sign in to the network</html>"
    address = f"{mirror.address}a.gz"
    assert failure([address], tmp_path / "a.gz")[address].startswith("the md5 of its unpacked content is ")


def test_every_mirror_is_named_with_its_reason(mirror, down, tmp_path):
    tried = failure([f"{mirror.address}a.gz", f"{down}a.gz"], tmp_path / "a.gz")
    assert tried == {
        f"{mirror.address}a.gz": "HTTP Error 404: Not Found",
        f"{down}a.gz": f"[Errno {errno.ECONNREFUSED}] Connection refused",
    }


def test_a_folder_that_cannot_be_made_is_a_reason(mirror, tmp_path):
    mirror.files["a.gz"] = PACKED
    (tmp_path / "file").touch()
    address = f"{mirror.address}a.gz"
    with pytest.raises(DownloadError, match="File exists"):
        download([address], tmp_path / "file" / "a.gz", CHECK)
    assert mirror.requests == []


def test_an_existing_file_is_replaced_only_by_a_good_one(mirror, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(b"old")
    with pytest.raises(DownloadError):
        download([f"{mirror.address}a.gz"], path, CHECK)
    assert path.read_bytes() == b"old"
