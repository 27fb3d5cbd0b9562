import re
import subprocess
import sys

import numpy as np
import pytest
import typer
from two_tables import ROWS, write_csv
from typer.testing import CliRunner

from tdcd.cli import tables as commands
from tdcd.cli.run import run
from tdcd.config import check_config
from tdcd.records.run_folder import RunFolder, toml_text
from tdcd.tables.assembly import assemble
from tdcd.tables.client_table import read_client
from tdcd.tables.errors import DataWarning, TableError

app = typer.Typer()
app.command()(commands.check)
app.command()(commands.split)
app.command()(run)


def called(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def federation(keys, tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(toml_text(keys))
    return path


def checked(federation, data, *more, silo="bank", client="c1"):
    return called("check", federation, "--silo", silo, "--client", client, "--data", data, *more)


def test_a_good_table_is_described_and_ready(federation, tmp_path, bank):
    status, said = checked(federation, tmp_path / "bank.csv")
    assert status == 0
    yes = sum(label == "yes" for label in bank["y"]) / ROWS
    first, second = sorted([(f"{yes:.1%}", "yes"), (f"{1 - yes:.1%}", "no")], reverse=True)
    assert f"bank.csv: {ROWS} rows, 2 features, every id once" in said
    assert 'Labels: 2 classes no, yes (model.loss = "logistic" decided from the values here;' in said
    assert f"Label values: {first[1]} {first[0]}, {second[1]} {second[0]}" in said
    age = np.array([float(text) for text in bank["age"] if text])
    assert f"age amount {ROWS - len(age)} {age.min():.6g} to {age.max():.6g}, mean {age.mean():.6g}" in said
    assert said.endswith("bank.csv can join as client 'c1' of silo 'bank'.")


def test_labels_may_be_in_a_second_file(federation, tmp_path, keys, bank):
    status, said = checked(federation, tmp_path / "bureau.csv", silo="bureau", client="c2")
    assert (status, "has no column 'y'" in said, "Not ready: correct" in said) == (2, True, True)
    labels = {"key": bank["id"], "y": bank["y"]}
    write_csv(tmp_path / "labels.csv", labels)
    arguments = ("--labels", tmp_path / "labels.csv")
    status, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau", client="c2")
    assert (status, "city names, 3 levels" in said) == (0, True)
    config = check_config(keys)
    rows = read_client(config, config.silos[1], tmp_path / "bureau.csv", tmp_path / "labels.csv")
    assert dict(zip(rows.ids, rows.labels, strict=True)) == dict(zip(map(str, bank["id"]), bank["y"], strict=True))
    write_csv(tmp_path / "labels.csv", {name: values[1:] for name, values in labels.items()})
    with pytest.raises(
        TableError,
        match=rf"labels.csv: has no label for 1 of the {ROWS} ids in .*bureau.csv, such as '{bank['id'][0]}'",
    ):
        read_client(config, config.silos[1], tmp_path / "bureau.csv", tmp_path / "labels.csv")


@pytest.mark.parametrize("silo", ["bank", "bureau"])
def test_a_table_without_labels_is_refused_with_where_they_may_be(federation, tmp_path, bank, bureau, silo):
    columns = {"bank": {name: bank[name] for name in ("id", "age", "debt")}, "bureau": bureau}
    write_csv(tmp_path / "new.csv", columns[silo])
    status, said = checked(federation, tmp_path / "new.csv", silo=silo)
    assert status == 2
    assert "new.csv: has no column 'y'; there are" in said
    assert 'label = "..." under the silo' in said
    assert "--labels FILE" in said


@pytest.mark.parametrize(
    ("columns", "found"),
    [(("key", "y"), True), (("id", "y", "age"), True), (("customer", "y"), True), (("customer", "y", "age"), False)],
    ids=["own", "labelled-silo", "only-one", "unknown"],
)
def test_a_table_of_labels_may_call_its_id_as_it_likes(keys, tmp_path, bank, columns, found):
    config = check_config(keys)
    write_csv(tmp_path / "labels.csv", {columns[0]: bank["id"]} | {name: bank[name] for name in columns[1:]})
    arguments = (config, config.silos[1], tmp_path / "bureau.csv", tmp_path / "labels.csv")
    if not found:
        with pytest.raises(
            TableError,
            match=r"labels\.csv: has no column 'key'; there are 'customer', 'y', 'age'; it must have the ids: rename "
            r"their column to 'key', which is id = \"\.\.\.\" of silo 'bureau', or leave only ids and labels",
        ):
            read_client(*arguments)
        return
    rows = read_client(*arguments)
    assert dict(zip(rows.ids, rows.labels, strict=True)) == dict(zip(map(str, bank["id"]), bank["y"], strict=True))


def test_a_table_without_ids_is_refused_with_the_key_that_names_them(federation, tmp_path, bank):
    write_csv(tmp_path / "new.csv", {"customer": bank["id"]} | {name: bank[name] for name in ("y", "debt")})
    status, said = checked(federation, tmp_path / "new.csv")
    assert status == 2
    assert "new.csv: has no column 'id'; there are 'customer', 'y', 'debt'; write the name of" in said
    assert 'the column with the ids as id = "..." under the silo' in said


def test_a_table_of_labels_without_labels_is_refused_with_the_key_that_names_them(federation, tmp_path, bank):
    write_csv(tmp_path / "labels.csv", {"key": bank["id"], "late": bank["y"]})
    arguments = ("--labels", tmp_path / "labels.csv")
    status, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau", client="c2")
    assert status == 2
    assert "labels.csv: has no column 'y'; there are 'key', 'late'; it must have the labels: write the name of" in said
    assert "their column as label = \"...\" under silo 'bureau'" in said
    assert "--labels FILE" not in said


def test_ids_without_labels_are_refused_with_what_can_be_done(federation, tmp_path, bank, bureau):
    write_csv(tmp_path / "labels.csv", {"key": bank["id"][3:], "y": bank["y"][3:]})
    arguments = ("--labels", tmp_path / "labels.csv")
    status, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau", client="c2")
    assert status == 2
    first, *_ = [one for one in bureau["key"] if one in bank["id"][:3]]
    assert f"labels.csv: has no label for 3 of the {ROWS} ids in {tmp_path / 'bureau.csv'}, such as '{first}'" in said
    assert "add their labels, or leave those rows out with --ids FILE, the common ids that tdcd align writes" in said
    assert said.count("has no label") == 1
    assert said.endswith("Not ready: correct what is listed above, then check again.")
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in bank["id"][2:]))
    arguments += ("--ids", tmp_path / "ids.txt")
    status, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau", client="c2")
    assert (status, f"such as '{bank['id'][2]}': add their labels Not ready" in said) == (2, True)


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        ("squared", ["no", "yes"], "model.loss = 'squared': the labels must be numbers, but one is 'no'"),
        ("logistic", ["a", "b", "c", "d"], "model.loss = 'logistic': there are 4 different labels, not two"),
    ],
)
def test_labels_that_do_not_fit_the_loss_are_not_ready(keys, tmp_path, bank, loss, labels, message):
    keys["model"]["loss"] = loss
    (tmp_path / "federation.toml").write_text(toml_text(keys))
    write_csv(tmp_path / "bank.csv", bank | {"y": labels * (ROWS // len(labels))})
    status, said = checked(tmp_path / "federation.toml", tmp_path / "bank.csv")
    assert status == 2
    assert f"the labels of {tmp_path / 'bank.csv'}: {message}" in said
    assert "Not ready: correct" in said


def test_counts_without_a_loss_are_reported_as_classes(keys, tmp_path, bank):
    write_csv(tmp_path / "bank.csv", bank | {"y": [row % 10 for row in range(ROWS)]})
    (tmp_path / "federation.toml").write_text(toml_text(keys))
    for command in (
        ("check", tmp_path / "federation.toml", "--silo", "bank", "--client", "c1", "--data", tmp_path / "bank.csv"),
        ("run", tmp_path / "federation.toml", "--out", tmp_path / "run"),
    ):
        status, said = called(*command)
        assert (status, 'Labels: 10 classes 0 to 9 (model.loss = "softmax" decided from' in said) == (0, True), said
        assert 'set model.loss = "squared" to predict amounts)' in said
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Labels: 10 classes 0 to 9 (model.loss = &quot;softmax&quot; decided from the values;" in page
    # The folder's settings name the loss; the report of a run that went on still says who chose it.
    assert called("run", "--resume", tmp_path / "run", "--set", "train.rounds=3")[0] == 0
    assert "decided from the values;" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_silo_may_have_a_name_of_its_own_for_the_label(keys, tmp_path, bureau):
    keys["silos"][1]["label"] = "late"
    write_csv(tmp_path / "bureau.csv", {**bureau, "late": [0, 1] * (ROWS // 2)})
    config = check_config(keys)
    assert read_client(config, config.silos[1], tmp_path / "bureau.csv").labels.tolist() == [0, 1] * (ROWS // 2)


def test_a_bad_table_is_not_ready(federation, tmp_path, bank):
    write_csv(tmp_path / "bad.csv", {**bank, "debt": ["much", *bank["debt"][1:]], "id": [0, 0, *bank["id"][2:]]})
    status, said = checked(federation, tmp_path / "bad.csv")
    assert status == 2
    assert "line 2, column 'debt': 'much' is not a number" in said
    assert "line 3, column 'id': the id '0' is on line 2 already" in said
    assert "Not ready: correct" in said


def test_what_may_not_be_meant_is_pointed_out(federation, tmp_path, bank):
    odd = {**bank, "y": ["no"] * ROWS, "age": [""] * ROWS, "debt": [3] * ROWS, "x": [*[""] * (ROWS - 2), 1, 2]}
    write_csv(tmp_path / "odd.csv", odd)
    status, said = checked(federation, tmp_path / "odd.csv")
    assert status == 0
    for warning in (
        "column 'age' is all blank: leave it out",
        "column 'debt' is the same in every row",
        "column 'x' is blank in most rows",
        "every label is the same here",
    ):
        assert f"Warning: {warning}" in said
    names = {"key": range(ROWS), "y": [0, 1] * (ROWS // 2), "city": [f"n{n}" for n in range(ROWS)], "debt": range(ROWS)}
    write_csv(tmp_path / "names.csv", names)
    _, said = checked(federation, tmp_path / "names.csv", silo="bureau")
    assert f"column 'city' has {ROWS} levels: is it an id, or an amount?" in said


def test_how_cells_are_read_is_reported(federation, tmp_path, bank):
    since = [f"2024-01-{1 + number % 28:02}" for number in range(ROWS)]
    write_csv(tmp_path / "more.csv", {**bank, "paid": ["true", "false"] * (ROWS // 2), "since": since})
    status, said = checked(federation, tmp_path / "more.csv")
    assert status == 0
    assert "paid true/false, as 1 and 0 0 0 to 1, mean 0.5" in said
    assert "since date, as days since" in said
    assert "0 2024-01-01 to 2024-01-28, mean 2024-01-1" in said.replace("1970-01-01 0", "0").replace("1970-01-01 ", "")


def test_exact_times_are_not_all_the_same(federation, tmp_path, bank):
    write_csv(tmp_path / "times.csv", {**bank, "time": [1_700_000_000 + one % 15 for one in range(ROWS)]})
    status, said = checked(federation, tmp_path / "times.csv")
    assert (status, "the same in every row" in said) == (0, False)
    assert "time amount 0 1700000000 to 1700000014, mean 170000000" in said


@pytest.mark.parametrize("start", [0, 1])
def test_columns_that_count_the_rows_are_pointed_out(federation, tmp_path, keys, bank, start):
    counting = {**bank, "row": range(start, ROWS + start), "back": range(ROWS, 0, -1)}
    write_csv(tmp_path / "bank.csv", counting)
    warning = "column 'row' only counts the rows: if it is not a measurement, leave it out with ignore = [\"row\"]"
    _, said = checked(federation, tmp_path / "bank.csv")
    assert f"Warning: {warning}" in said
    assert "'back'" not in said
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in bank["id"][::3]))
    _, said = checked(federation, tmp_path / "bank.csv", "--ids", tmp_path / "ids.txt")
    assert f"Warning: {warning}" in said
    config = check_config(keys)
    with pytest.warns(DataWarning, match=re.escape(f"{tmp_path / 'bank.csv'}: {warning}")):
        assemble(config, bias=None)
    write_csv(tmp_path / "bank.csv", {"": range(ROWS), **bank})
    status, said = checked(federation, tmp_path / "bank.csv")
    assert (status, "bank.csv: column 1 has no name, like the row numbers that pandas adds" in said) == (2, True)
    with pytest.raises(TableError, match="column 1 has no name, like the row numbers that pandas adds"):
        assemble(config, bias=None)


def test_a_run_says_that_a_column_counts_the_rows(federation, tmp_path, bank):
    write_csv(tmp_path / "bank.csv", {**bank, "row": range(ROWS)})
    command = [sys.executable, "-m", "tdcd", "run", federation, "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"Warning: {tmp_path / 'bank.csv'}: column 'row' only counts the rows: ")


def test_only_the_common_ids_need_labels(federation, tmp_path, bank, bureau):
    write_csv(tmp_path / "labels.csv", {"key": bank["id"][:50], "y": bank["y"][:50]})
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in bank["id"][:40]))
    arguments = ("--labels", tmp_path / "labels.csv", "--ids", tmp_path / "ids.txt")
    status, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau")
    assert (status, "bureau.csv: 40 rows, 2 features, every id once" in said) == (0, True)


def test_ids_that_are_written_in_two_ways_get_a_hint(federation, tmp_path, bank, bureau):
    padded = [f"{one:05}" for one in bank["id"]]
    write_csv(tmp_path / "labels.csv", {"key": padded, "y": bank["y"]})
    arguments = ("--labels", tmp_path / "labels.csv")
    _, said = checked(federation, tmp_path / "bureau.csv", *arguments, silo="bureau")
    hint = f"'0' in {tmp_path / 'bureau.csv'} is not '00000' in {tmp_path / 'labels.csv'}; write them alike"
    assert f"ids are compared as exact texts: {hint}" in said
    write_csv(tmp_path / "padded.csv", {**bank, "id": padded})
    _, said = checked(federation, tmp_path / "padded.csv")
    assert f"Warning: ids are compared as exact texts: others must write '{padded[0]}' with its zeros too" in said
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in bank["id"]))
    _, said = checked(federation, tmp_path / "padded.csv", "--ids", tmp_path / "ids.txt")
    none = f"has none of the ids in {tmp_path / 'ids.txt'}, of which there are {ROWS}: "
    assert f"{none}ids are compared as exact texts: '00000' in" in said


def test_without_options_every_table_that_is_here_is_checked(federation, tmp_path, keys, bank, bureau, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said = called("check", federation.name)
    assert status == 0, said
    yes = sum(label == "yes" for label in bank["y"]) / ROWS
    first, second = sorted([(f"{yes:.1%}", "yes"), (f"{1 - yes:.1%}", "no")], reverse=True)
    shares = f"{first[1]} {first[0]}, {second[1]} {second[0]}"
    assert f"bank 3 clients bank.csv {ROWS} 2 {shares}" in said
    assert f"bureau 2 clients bureau.csv {ROWS} 2" in said
    assert f"{ROWS} ids are in every silo:" in said
    assert f"bank {ROWS} {ROWS} 0 (0.0%) {shares} {shares}" in said
    assert said.endswith("Ready: 2 of 2 tables are here and ready.")
    write_csv(tmp_path / "bureau.csv", {name: values[20:] for name, values in bureau.items()})
    status, said = called("check", federation)
    assert (status, f"{ROWS - 20} ids are in every silo: silo 'bank' has {ROWS}, 20 of which others lack" in said) == (
        2,
        True,
    )
    assert f"bank {ROWS} {ROWS - 20} 20 (25.0%)" in said
    assert said.endswith("Not ready: correct what is listed above, then check again.")
    keys["data"]["align"] = True
    federation.write_text(toml_text(keys))
    assert called("check", federation)[0] == 0
    write_csv(tmp_path / "bureau.csv", {**bureau, "debt": ["much", *bureau["debt"][1:]]})
    status, said = called("check", federation)
    assert (status, "bureau.csv, line 2, column 'debt': 'much' is not a number" in said, "not usable" in said) == (
        2,
        True,
        True,
    )
    (tmp_path / "bureau.csv").unlink()
    status, said = called("check", federation)
    assert (status, said.endswith("Ready: 1 of 2 tables are here and ready; check the others where they are.")) == (
        0,
        True,
    )
    assert "bureau 2 clients bureau.csv not here" in said
    (tmp_path / "bank.csv").unlink()
    status, said = called("check", federation)
    assert (status, "no table of the silos is on this machine, such as" in said) == (2, True)
    status, said = called("check", federation, "--silo", "bank")
    assert (status, "give --silo, --client and --data to check one table, or no option" in said) == (2, True)


def test_the_tables_of_clients_are_checked_together(tmp_path, keys, bank, monkeypatch):
    monkeypatch.chdir(tmp_path)
    halves = [{name: values[part] for name, values in bank.items()} for part in (slice(0, 50), slice(40, ROWS))]
    for place, half in enumerate(halves):
        write_csv(tmp_path / f"b{place}.csv", half)
    keys["silos"][0] = {
        "name": "bank",
        "label": "y",
        "client": [{"name": f"c{n}", "table": f"b{n}.csv"} for n in (0, 1)],
    }
    (tmp_path / "federation.toml").write_text(toml_text(keys))
    status, said = called("check", "federation.toml")
    assert (status, "bank c0 b0.csv 50 2" in said) == (2, True)
    assert f"silo 'bank': id '{bank['id'][40]}' is held by {tmp_path / 'b0.csv'} and by {tmp_path / 'b1.csv'}" in said


def test_a_run_says_what_the_common_ids_cost(federation, tmp_path, keys, bank, opened):
    """Per silo, in the terminal, in the run folder and in the report; the label rate by hand."""
    keys["data"]["align"] = True
    federation.write_text(toml_text(keys))
    few = [place for place, label in enumerate(bank["y"]) if label == "yes" or place % 2]
    bureau = {"key": [bank["id"][place] for place in few], "debt": [place % 7 for place in few]}
    write_csv(tmp_path / "bureau.csv", {**bureau, "city": ["Rome", *["Oslo"] * (len(few) - 1)]})
    opened.clear()
    status, said = called("run", federation, "--out", tmp_path / "run")
    # The configuration is read once, and so is every table.
    assert [opened[path.name] for path in (federation, tmp_path / "bank.csv", tmp_path / "bureau.csv")] == [1, 1, 1]
    assert status == 0, said
    before, after = (sum(bank["y"][place] == "yes" for place in some) / len(some) for some in (range(ROWS), few))

    def shares(rate):
        pairs = sorted([(-rate, f"yes {rate:.1%}"), (rate - 1, f"no {1 - rate:.1%}")])
        return ", ".join(words for _, words in pairs)

    lost = ROWS - len(few)
    line = f"bank {ROWS} {len(few)} {lost} ({lost / ROWS:.1%}) {shares(before)} {shares(after)}"
    assert line in said
    assert f"bureau {len(few)} {len(few)} 0 (0.0%) – –" in said
    facts = RunFolder(tmp_path / "run").facts()["alignment"]
    assert facts["bank"]["labels_after"]["yes"] == pytest.approx(after)
    assert (facts["bank"]["ids"], facts["bank"]["common"], facts["bureau"]["labels_before"]) == (ROWS, len(few), None)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "kept to the ids that all silos have" in page
    assert f"{lost} ({lost / ROWS:.1%})" in page
    assert shares(after) in page
    assert called("run", "--resume", tmp_path / "run", "--set", "train.rounds=3")[0] == 0


def test_unknown_parties_are_refused(federation, tmp_path):
    status, said = checked(federation, tmp_path / "bank.csv", silo="shop")
    assert (status, "there is no silo 'shop'; there are bank, bureau" in said) == (2, True)
    status, said = checked(federation, tmp_path / "bank.csv", client="c9")
    assert (status, "silo 'bank' has no client 'c9'; there are c1, c2, c3" in said) == (2, True)


def test_split_writes_a_federation(tmp_path):
    columns = {"id": range(20), "y": [0, 1] * 10, "a": range(20), "b": range(20)}
    write_csv(tmp_path / "whole.csv", columns)
    base = ("split", tmp_path / "whole.csv", "--label", "y")
    status, said = called(
        *base, "--silos", "bank=a", "--silos", "shop=b", "--clients", "2,1", "--out", tmp_path / "out"
    )
    assert (status, said) == (0, f"Federation: {tmp_path / 'out' / 'federation.toml'}".replace("\n", " "))
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.csv")) == ["c1.csv", "c1.csv", "c2.csv"]
    status, _ = called(*base, "--silos", "2", "--parquet", "--out", tmp_path / "binary")
    assert (status, len(list((tmp_path / "binary").rglob("*.parquet")))) == (0, 6)
    for wrong, message in (
        (("--silos", "bank"), "--silos bank: write a number, or NAME=COLUMN,COLUMN,..."),
        (("--silos", "2", "--clients", "x"), "--clients x: write a number, or one for each silo: 5,3"),
        (("--silos", "2", "--clients", "0"), "client"),
    ):
        status, said = called(*base, *wrong, "--out", tmp_path / "wrong")
        assert (status, message in said) == (2, True)
    assert not (tmp_path / "wrong").exists()
