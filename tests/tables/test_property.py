"""Random tables through split, run, predict and export: predictions equal those computed by hand from the raw cells."""

import csv
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer import Typer
from typer.testing import CliRunner

from tdcd.cli.predict import predict
from tdcd.config import check_config, read_config
from tdcd.data.table import holdout_mask
from tdcd.prediction.coefficients import write_coefficients
from tdcd.prediction.model import Model
from tdcd.tables.dialect import BLANKS
from tdcd.tables.rows import id_order
from tdcd.tables.split import split_table
from tdcd.training.run import run

app = Typer()
app.command()(predict)
ROWS = 12
AMOUNTS = ["age", 'say "hi", twice', "größe"]
NAMES = ["city\u2028=", "Ж"]
CLASSES = {"amounts": [-2.5, 0.125, 1e3, 7.0], "two": ["nein", 'ja, "ja"'], "three": ["a", "b", "ß"]}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=4)
blanks = st.sampled_from([blank for blank in BLANKS if blank])
amounts = st.one_of(
    st.floats(-1e3, 1e3, width=32).map(repr), st.integers(-9, 9).map(str), st.just("+1.5e-3"), st.just(""), blanks
)
# Few different ones, so that training and new rows share some.
names = st.one_of(st.sampled_from(["#Rome", "#Oslo", "#other", ""]), texts.map(lambda text: f"#{text}"))


def tables(rows):
    ids = st.lists(texts.filter(str.strip), min_size=rows, max_size=rows, unique=True)
    records = st.lists(st.tuples(*[amounts] * len(AMOUNTS), *[names] * len(NAMES)), min_size=rows, max_size=rows)
    return st.tuples(ids, records).map(lambda drawn: [[one, *cells] for one, cells in zip(*drawn, strict=True)])


def write(path, table, labels=None):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *AMOUNTS, *NAMES, *["y"] * (labels is not None)])
        for number, row in enumerate(table):
            writer.writerow([*row, *([] if labels is None else [labels[number % len(labels)]])])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def training_means(table):
    """The mean of each column of amounts over the training rows, for those without blanks."""
    training = id_order([row[0] for row in table])[~holdout_mask(ROWS, 0.2, seed=0)]
    columns = {name: [table[row][1 + place] for row in training] for place, name in enumerate(AMOUNTS)}
    return {
        name: math.fsum(map(float, cells)) / len(cells) for name, cells in columns.items() if not {*cells} & {*BLANKS}
    }


def terms(row, table, means):
    """What each cell of a raw row adds to the score of every output, by the rules that the export states."""
    own = [line for line in table if line["silo"]]
    found = {line["column"]: line for line in own}
    used = [next(line for line in table if line["column"] == "intercept" and not line["silo"])]
    scale = [1.0]
    for column in (*AMOUNTS, *NAMES):
        blank = row[column] in BLANKS
        if blank and f"{column} missing" in found:
            used.append(found[f"{column} missing"])
        elif column in AMOUNTS:
            used.append(found[column])
        else:
            used.append(found.get(f"{column}={row[column]}", found[f"{column}=other"]))
        value = means[column] if blank and column in means else row[column]
        scale.append(float(value) if used[-1] is found.get(column) else 1.0)
    outputs = [name for name in table[0] if name.startswith("coefficient")]
    return [[float(line[name]) * times for line, times in zip(used, scale, strict=True)] for name in outputs]


def check(row, line, kind, by_output):
    """Hold one prediction against the sums of the terms."""
    scores = [math.fsum(one) for one in by_output]
    # Features are rounded to float32, each to about 1e-7 of what it adds before standardisation is undone.
    slack = 1e-5 * max(1 + sum(map(abs, one)) for one in by_output)
    if kind == "amounts":
        assert float(line["prediction"]) == pytest.approx(scores[0], abs=slack)
        return
    names = sorted(CLASSES[kind])
    if kind == "two":
        chances = {names[1]: (1 + math.tanh(scores[0] / 2)) / 2}
        best = names[scores[0] > 0]
        margin = abs(scores[0])
    else:
        weights = [math.exp(score - max(scores)) for score in scores]
        chances = dict(zip(names, (weight / sum(weights) for weight in weights), strict=True))
        best = max(chances, key=chances.__getitem__)
        margin = max(scores) - sorted(scores)[-2]
    for name, chance in chances.items():
        assert float(line[f"probability_{name}"]) == pytest.approx(chance, abs=slack)
    assert line["prediction"] == best or margin < slack


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    table=tables(ROWS),
    new=tables(5),
    kind=st.sampled_from(sorted(CLASSES)),
    rare=st.integers(1, 3),
    parquet=st.booleans(),
)
def test_predictions_are_those_computed_by_hand(tmp_path_factory, table, new, kind, rare, parquet):
    folder = tmp_path_factory.mktemp("random")
    # A column without any name would be taken for amounts.
    table[0][-len(NAMES) :] = ["#Rome"] * len(NAMES)
    write(folder / "whole.csv", table, CLASSES[kind])
    silos = {"bank": [AMOUNTS[0], NAMES[0]], "bureau": [NAMES[1], *AMOUNTS[1:]]}
    path = split_table(folder / "whole.csv", folder / "out", silos=silos, clients=[2, 1], label="y", parquet=parquet)
    keys = read_config(path)
    keys["data"]["rare"] = rare
    keys["train"] |= {"rounds": 2, "local_steps": 2, "batch_size": 4, "step_size": 0.1}
    keys["model"]["loss"] = {"amounts": "squared", "two": "logistic", "three": "softmax"}[kind]
    run(check_config(keys), folder / "run")
    write_coefficients(folder / "coefficients.csv", Model.load(folder / "run").coefficients())
    write(folder / "new.csv", new)
    data = [option for silo in silos for option in ("--data", f"{silo}={folder / 'new.csv'}")]
    result = CliRunner().invoke(app, [str(folder / "run"), *data, "--out", str(folder / "predictions.csv")])
    assert result.exit_code == 0, result.output
    exported, rows, lines = (read(folder / name) for name in ("coefficients.csv", "new.csv", "predictions.csv"))
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    by_id = {row["id"]: row for row in rows}
    for line in lines:
        check(by_id[line["id"]], line, kind, terms(by_id[line["id"]], exported, training_means(table)))
