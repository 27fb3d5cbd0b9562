import ast
import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from tdcd import Federation, load
from tdcd.core.ledger import Traffic
from tdcd.prediction.predictions import Named, write_held_out
from tdcd.records.files import marks_of, write_durably
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder, federation_facts, toml_text
from tdcd.runtime.storage.status import replace_quickly
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.writing import write_table

pytestmark = pytest.mark.quick

FEDERATION = Federation.cut(load("breast_cancer"), silos=2, clients=2)
NAMES = ["silo1", "silo2"]


def blocks(value):
    return [{"weight": np.full((3, 1), value)}, {"hidden": [{"bias": np.full(2, value)}]}]


def record(index):
    return Record(index, index * 10, 1.0, None, {"train": {}}, Traffic(), Traffic(), 0.0)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", {"seed": 1}, federation_facts(FEDERATION, [3, 2], "clients"))
    for index in (0, 5, 10):
        made.append(record(index))
    return made


def test_blocks_come_back_bit_for_bit(folder):
    original = [{"weight": np.array([[1 / 3], [np.nextafter(0, 1)], [-0.0]])}, {"hidden": [{"bias": np.ones(2)}]}]
    folder.save_blocks(NAMES, original, 7)
    loaded, at = folder.load_blocks(NAMES, blocks(0.0))
    assert at == 7
    assert loaded[0]["weight"].tobytes() == original[0]["weight"].tobytes()


def test_the_same_blocks_give_the_same_bytes(folder):
    folder.save_blocks(NAMES, blocks(1.0), 7)
    first = (folder.path / "model" / "silo2.safetensors").read_bytes()
    folder.save_blocks(NAMES, blocks(1.0), 7)
    assert (folder.path / "model" / "silo2.safetensors").read_bytes() == first


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_crash_while_replacing_leaves_whole_old_or_new_blocks(folder, renames):
    """The states on disk after a kill before the first rename, between the two, and after both."""
    path = folder.path
    folder.save_blocks(NAMES, blocks(2.0), 10)
    (path / "model").rename(path / "later")
    folder.save_blocks(NAMES, blocks(1.0), 5)
    (path / "later").rename(path / "model.new")
    if renames >= 1:
        (path / "model").rename(path / "model.old")
    if renames == 2:
        (path / "model.new").rename(path / "model")
    loaded, at = RunFolder.open(path).load_blocks(NAMES, blocks(0.0))
    assert at == (10 if renames == 2 else 5)
    assert {float(leaf.flat[0]) for leaf in (loaded[0]["weight"], loaded[1]["hidden"][0]["bias"])} == {at / 5}
    folder.save_blocks(NAMES, blocks(3.0), 15)
    assert folder.load_blocks(NAMES, blocks(0.0))[1] == 15
    assert not (path / "model.old").exists()


def test_rewinding_drops_later_diverged_and_torn_lines(folder):
    folder.append(Record(10, 100, float("nan"), None, {}, Traffic(), Traffic(), 0.0))
    with (folder.path / "history.jsonl").open("a") as file:
        file.write('{"round": 15, "itera')
    marks = marks_of(record.without_seconds() for record in folder.history())
    assert [kept.round for kept in folder.records_before(10, 5, marks[4])] == [0, 5, 10]
    assert [kept.round for kept in folder.records_before(10, 5, marks[2])] == [0, 5]
    folder.rewrite_history(folder.records_before(7, 5, marks[4]))
    assert [kept.round for kept in folder.history()] == [0, 5]
    with pytest.raises(ValueError, match=r"history\.jsonl has 2 readable lines of the 3 that were written: restore it"):
        folder.records_before(10, 5, marks[3])


def test_refusals_name_the_file_and_the_difference(folder, tmp_path):
    with pytest.raises(FileExistsError, match="already holds a run"):
        RunFolder.create(folder.path, {}, {})
    (tmp_path / "mine.toml").write_text("precious")
    with pytest.raises(FileExistsError, match="is not an empty folder: choose another one"):
        RunFolder.create(tmp_path, {}, {})
    with pytest.raises(FileNotFoundError, match=r"not a run folder: it has no config\.toml"):
        RunFolder.open(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"silo1\.safetensors is missing"):
        folder.load_blocks(NAMES, blocks(0.0))
    folder.save_blocks(NAMES, blocks(1.0), 5)
    with pytest.raises(ValueError, match=r"'weight' is float64\[3, 1\], but the model needs float32\[3, 1\]"):
        folder.load_blocks(NAMES, [{"weight": np.zeros((3, 1), np.float32)}, blocks(0.0)[1]])
    with pytest.raises(ValueError, match=r"silo1\.safetensors lacks 'slice': .*; train\.start begins it with"):
        folder.load_blocks(NAMES, [{"slice": np.zeros(3)}, blocks(0.0)[1]])


scalars = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(exclude_categories=("Cs",))),
)
values = st.one_of(
    scalars, st.lists(scalars, max_size=3), st.lists(st.dictionaries(st.text("abc", min_size=1), scalars))
)


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), values, max_size=4))
def test_toml_text_is_read_back_as_it_was(section):
    assert tomllib.loads(toml_text({"seed": 1, "section": section})) == {"seed": 1, "section": section}


def test_nothing_else_names_the_files_of_a_run_folder():
    """Hubs add files of their own to a run folder, and name its history in messages."""
    names = re.compile(
        r"(config\.toml|federation\.json|history\.jsonl|labels\.json|alone\.json|report\.html|held-out\.csv|sweep\.json)"
    )
    package = Path(tdcd.__file__).parent
    found = {
        (str(path.relative_to(package)), node.value)
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "records"
        if names.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and names.fullmatch(node.value)
    }
    assert {path for path, _ in found} <= {"runtime/storage/hub_folder.py", "runtime/storage/hub_restart.py"}


@pytest.fixture
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_a_run_leaves_is_for_its_owner_alone(tmp_path, open_umask):
    run = RunFolder.create(tmp_path / "deep" / "run", {"seed": 0}, {"silos": []})
    encoding = LabelEncoding("binary", ("no", "yes"))
    write_held_out(run.path, Named("id", ["1"], ["no"], encoding), np.zeros((1, 1), np.float32), "logistic")
    run.save_blocks(["a"], [{"weight": np.zeros((2, 1), np.float32)}], 0)
    run.write_report("<p>")
    replace_quickly(run.path / "status.json", b"{}")
    assert oct(run.path.stat().st_mode & 0o777) == "0o700"
    files = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()}
    assert {"held-out.csv", "history.jsonl", "config.toml", "a.safetensors", "status.json"} <= files.keys()
    assert set(files.values()) == {0o600}
    # A table that a person asks for by its name is as any other file of theirs.
    write_table(tmp_path / "new.csv", {"id": ["1"]})
    assert oct((tmp_path / "new.csv").stat().st_mode & 0o777) == "0o644"


@pytest.mark.parametrize("write", [write_durably, replace_quickly])
def test_a_link_in_the_place_of_the_draft_is_not_followed(tmp_path, write):
    victim, file = tmp_path / "victim", tmp_path / "run" / "status.json"
    victim.write_text("mine")
    file.parent.mkdir()
    file.with_name("status.json.tmp").symlink_to(victim)
    write(file, b"new")
    assert (victim.read_text(), file.read_bytes()) == ("mine", b"new")
    assert not file.is_symlink()
