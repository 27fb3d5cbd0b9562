"""The file that a silo publishes: it says what was signed, and anything else is refused with a sentence."""

import json
import time

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from tdcd.prediction.scores import SiloScores
from tdcd.records.model_file import read_metadata
from tdcd.runtime.certificates.agreement import Authority, Certified
from tdcd.runtime.certificates.issue import revoke, throwaway
from tdcd.runtime.process.predict import ModelOf
from tdcd.serving.publication import (
    KEY,
    CommonIds,
    PublicationHeader,
    SignedHeader,
    digest_of_arrays,
    publish,
    read_publication,
)
from tdcd.tables.dialect import DEFAULT, Dialect
from tdcd.tables.errors import TableError

pytestmark = pytest.mark.quick
RUN = ModelOf("0a1b", "finished")
SECRET = b"s" * 32
PHI = SiloScores(["7", "30", "x", "4"], np.array([[1.5], [2.5], [9.0], [-3.0]], np.float32))


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    throwaway(folder, {"hub.bank": ["127.0.0.1"], "hub.shop": ["127.0.0.1"]}, ["client.shop.e"])
    return folder


@pytest.fixture
def common(tmp_path):
    (tmp_path / "common.txt").write_text("4\n7\n100\n30\n")
    return CommonIds(tmp_path / "common.txt", DEFAULT, SECRET)


def published(path, certs, common, signer="hub.shop", run=RUN, days=1.0, phi=PHI, silo="shop"):
    publish(path, silo, phi, common, run, "d" * 32, days, Certified(certs, signer))
    return path


def read(path, certs, common, run=RUN, width=1, dtype="float32"):
    return read_publication(path, Authority(certs), common, run, width, dtype)


def rewritten(path, change=lambda statement: statement, arrays=lambda arrays: arrays):
    """The file with another statement or other arrays, and the old signature."""
    content = path.read_bytes()
    signed = json.loads(read_metadata(content)[KEY])
    signed["statement"] = change(signed["statement"])
    path.write_bytes(save(arrays(load(content)), {KEY: json.dumps(signed)}))


def signed(path, certs, common, places, phi):
    """What a silo signs that keeps the form and no more."""
    now = int(time.time())
    digest = digest_of_arrays(places, phi)
    statement = PublicationHeader("shop", *RUN, "d", common.digest(RUN.run), digest, now, now + 60)
    content = SignedHeader(statement, *Certified(certs, "hub.shop").sign(statement.signed))
    path.write_bytes(save({"places": places, "phi": phi}, {KEY: msgspec.json.encode(content).decode()}))
    return path


def test_it_has_phi_of_the_common_ids_and_no_id(tmp_path, certs, common):
    path = published(tmp_path / "shop.phi", certs, common)
    found = read(path, certs, common)
    assert dict(zip(found.scores.ids, found.scores.phi[:, 0].tolist(), strict=True)) == {"30": 2.5, "4": -3, "7": 1.5}
    assert found.statement.expires - found.statement.published == 24 * 3600
    # Places in a list that only the silos have, of 4 ids here; 100 is absent, x is not common.
    assert load(path.read_bytes())["places"].tolist() == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_in_another_order_are_the_same_list_and_one_more_id_is_another(tmp_path, certs, common):
    path = published(tmp_path / "shop.phi", certs, common)
    (tmp_path / "common.txt").write_text("30\n100\n\n4\n7\n7\n")
    again = CommonIds(tmp_path / "common.txt", DEFAULT, SECRET)
    assert [*read(path, certs, again).scores.ids] == ["30", "4", "7"]
    assert CommonIds(tmp_path / "common.txt", Dialect(ids="plain"), SECRET).ids == again.ids
    (tmp_path / "more.txt").write_text("30\n100\n4\n7\n8\n")
    for other in (CommonIds(tmp_path / "more.txt", DEFAULT, SECRET), CommonIds(common.path, DEFAULT, b"t" * 32)):
        with pytest.raises(ValueError, match=r"is about other ids than .*: both parties take what the same tdcd align"):
            read(path, certs, other)


def test_what_was_altered_is_refused(tmp_path, certs, common):
    path = published(tmp_path / "shop.phi", certs, common)
    rewritten(path, arrays=lambda arrays: {**arrays, "phi": arrays["phi"] + 1})
    with pytest.raises(
        ValueError, match=r"shop.phi, phi of silo 'shop', was altered after it was signed: get the file"
    ):
        read(path, certs, common)
    published(path, certs, common)
    rewritten(path, arrays=lambda arrays: {**arrays, "more": arrays["phi"]})
    with pytest.raises(ValueError, match="was altered"):
        read(path, certs, common)
    fields = {"silo": "bank", "run": "ff", "status": "diverged", "model": "e", "ids": "0" * 64, "arrays": "0" * 64}
    times = {"published": 1, "expires": int(time.time()) + 10**9}
    assert {*fields, *times} == {*PublicationHeader.__struct_fields__}
    for name, value in (fields | times).items():
        published(path, certs, common)
        rewritten(path, lambda statement, name=name, value=value: {**statement, name: value})
        why = "comes with the certificate of hub.shop" if name == "silo" else "is not signed with its certificate's key"
        with pytest.raises(ValueError, match=why):
            read(path, certs, common)


def test_another_signer_another_authority_and_a_revoked_certificate_are_refused(tmp_path, certs, common):
    for signer in ("hub.bank", "client.shop.e"):
        path = published(tmp_path / "shop.phi", certs, common, signer)
        with pytest.raises(ValueError, match=f"comes with the certificate of {signer}"):
            read(path, certs, common)
    throwaway(tmp_path / "others", {"hub.shop": ["127.0.0.1"]}, [])
    path = published(tmp_path / "shop.phi", tmp_path / "others", common)
    with pytest.raises(ValueError, match="comes with no certificate of this federation's authority"):
        read(path, certs, common)
    path = published(path, tmp_path / "others", common)
    read(path, tmp_path / "others", common)
    authority = Authority(tmp_path / "others")
    assert read(path, tmp_path / "others", common).refusal(authority) == ""
    revoke(tmp_path / "others", ["hub.shop"])
    why = "the phi of silo 'shop' comes with a certificate that was revoked"
    assert read(path, tmp_path / "others", common).refusal(authority) == why


def test_another_run_and_another_model_are_refused(tmp_path, certs, common):
    path = published(tmp_path / "shop.phi", certs, common)
    for run in (ModelOf("ffff", "finished"), ModelOf("0a1b", "diverged")):
        with pytest.raises(ValueError, match=r"is of another run: 0a1b \(finished\), not .*; the silo has to publish"):
            read(path, certs, common, run)
    for width, dtype in ((2, "float32"), (1, "float64")):
        with pytest.raises(ValueError, match=rf"is float32\[3, 1\], but the model needs {dtype}\[3, {width}\]"):
            read(path, certs, common, width=width, dtype=dtype)


def test_what_no_silo_may_sign_is_refused_too(tmp_path, certs, common):
    path, phi = tmp_path / "shop.phi", PHI.phi.copy()
    phi[1] = np.nan
    published(path, certs, common, phi=SiloScores(PHI.ids, phi))
    with pytest.raises(ValueError, match="holds something other than finite numbers by place"):
        read(path, certs, common)
    with pytest.raises(TableError, match=r"none of the 4 ids in .*common.txt is in the new rows"):
        published(path, certs, common, phi=SiloScores(["y"], PHI.phi[:1]))
    for places, why in (([1, 1, 2], "places that do not rise"), ([1, 2, 4], "places past the 4 common ids")):
        with pytest.raises(ValueError, match=why):
            read(signed(path, certs, common, np.array(places, np.int64), PHI.phi[:3]), certs, common)
    with pytest.raises(ValueError, match="has 2 places and 3 rows"):
        read(signed(path, certs, common, np.array([1, 2]), PHI.phi[:3]), certs, common)


@pytest.mark.parametrize("content", [b"", b"\x80\x04junk", b"\xff" * 400, save({"phi": PHI.phi}, {KEY: "[[[["})])
def test_any_other_file_is_refused(tmp_path, certs, common, content):
    (tmp_path / "shop.phi").write_bytes(content)
    with pytest.raises(ValueError, match=r"shop.phi is not phi that a silo published, or is damaged"):
        read(tmp_path / "shop.phi", certs, common)


def test_lists_that_are_none_are_refused(tmp_path):
    for content, why in ((b"\n\n", "has no ids"), (b"\xff\xfe", "is no text")):
        (tmp_path / "list").write_bytes(content)
        with pytest.raises(TableError, match=f"list {why}: --ids takes the file that tdcd align wrote"):
            CommonIds(tmp_path / "list", DEFAULT, SECRET)


def test_the_statement_has_one_form(tmp_path, certs, common):
    statement = read(published(tmp_path / "shop.phi", certs, common), certs, common).statement
    assert statement.signed.startswith(b"tdcd published phi 1\n{")
    assert msgspec.json.decode(statement.signed.split(b"\n", 1)[1], type=PublicationHeader) == statement
