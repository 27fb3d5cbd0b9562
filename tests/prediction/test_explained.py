"""Effects and importance of columns: identities of additive models, and what shuffling must and must not change."""

import csv
import json

import numpy as np
import pytest

import tdcd
from support.command import tdcd as command
from tdcd.pages.report import write_report
from tdcd.prediction.importance import SiloRows, shuffled
from tdcd.records.run_folder import RunFolder
from tdcd.tables.effects import Effect

NUM_ROWS = 160


@pytest.fixture(scope="module")
def frames():
    draw = np.random.default_rng(5)
    ids = [f"p{number:03}" for number in range(NUM_ROWS)]
    age, income = draw.uniform(20, 70, NUM_ROWS), draw.lognormal(8, 1, NUM_ROWS)
    city = draw.choice(["rome", "oslo", "lima"], NUM_ROWS)
    income[::9] = np.nan
    paid = ["yes" if one else "no" for one in (age > 45) | (city == "oslo")]
    bank = {"id": ids, "age": age, "income": income, "paid": paid}
    return {"bank": bank, "shop": {"id": ids, "city": city, "visits": draw.poisson(3, NUM_ROWS).astype(float)}}


def trained(frames, out, block="linear", **model):
    classifier = tdcd.TwoTierClassifier(block=block, clients=2, rounds=3, step_size=0.3, verbose=0, out=out, **model)
    return classifier.fit(frames, label="paid", id="id").model_


@pytest.fixture(scope="module")
def models(frames, tmp_path_factory):
    settings = {"standard": {}, "bins": {"encoding": "bins"}, "piecewise": {"encoding": "piecewise"}}
    return {name: trained(frames, tmp_path_factory.mktemp(name) / "run", **keys) for name, keys in settings.items()}


def without_labels(frames):
    return {silo: {name: values for name, values in own.items() if name != "paid"} for silo, own in frames.items()}


@pytest.mark.parametrize("encoding", ["standard", "bins", "piecewise"])
def test_effects_over_all_rows_add_up_to_the_scores(models, frames, encoding):
    """Of an additive model, the score is its mean plus the effects of the row's own values."""
    model, tables = models[encoding], without_labels(frames)
    for silo, table in tables.items():
        part, rows = model.part(silo), model._read(silo, table)
        phi = part.phi(rows)
        for effect in model.effects().silos[silo]:
            # Only differences are free of what an average row is.
            one = rows.take(np.zeros(len(effect.points), np.int64))
            column = one.features[effect.column]
            if hasattr(column, "levels"):
                codes = [column.levels.index(name) if name in column.levels else -1 for name in effect.points]
                column = column._replace(codes=np.array(codes, np.int32))
            elif encoding == "bins":
                ends = [np.nan if "blank" in name else float(name.split()[-1]) for name in effect.points]
                above = np.array(["above" in name for name in effect.points])
                column = np.where(above, np.nextafter(ends, np.inf), ends)
            else:
                column = np.array([np.nan if "blank" in name else float(name) for name in effect.points])
            moved = part.phi(type(one)(one.source, one.ids, {**one.features, effect.column: column}))
            expected = moved - moved[0]
            np.testing.assert_allclose(effect.values - effect.values[0], expected, atol=2e-5, err_msg=effect.column)
        if encoding != "standard":
            continue
        # Averaged over these rows, effects have mean zero over them.
        over = {effect.column: effect for effect in model.effects({silo: table}).silos[silo]}
        assert {*over} == {*rows.features}
        amounts = next(name for name in over if over[name].places and not np.isnan(rows.features[name]).any())
        effect = over[amounts]
        line = np.polyfit(effect.places, effect.values[:, 0], 1)
        used = rows.features[amounts][np.unique(np.linspace(0, NUM_ROWS - 1, 100).round().astype(int))]
        assert np.polyval(line, used).mean() == pytest.approx(0, abs=1e-4)
        assert np.isfinite(phi).all()


def test_the_effect_of_a_network_is_the_mean_of_its_phi(frames, tmp_path):
    model = trained(frames, tmp_path / "run", block="mlp", hidden=(3,))
    with pytest.raises(ValueError, match="silo 'bank' has a block of kind 'mlp', whose effects are averages over rows"):
        model.effects()
    tables = without_labels(frames)
    found = model.effects(tables)
    assert repr(found) == "Effects of 4 columns of 2 silos (bank, shop)"
    assert "capital" not in found._repr_html_()
    part, rows = model.part("shop"), model._read("shop", tables["shop"])
    chosen = rows.take(np.unique(np.linspace(0, NUM_ROWS - 1, 100).round().astype(np.int64)))
    effect = next(one for one in found.silos["shop"] if one.column == "city")
    for point, value in zip(effect.points, effect.values[:, 0], strict=True):
        city = chosen.features["city"]
        moved = city._replace(codes=np.full(len(chosen), city.levels.index(point), np.int32))
        shifted = part.phi(type(chosen)(chosen.source, chosen.ids, {**chosen.features, "city": moved}))
        assert value == pytest.approx((shifted.mean() - part.phi(chosen).mean()), abs=1e-5)
    # The run worked the same out of its training rows, for the report; a linear block's follow from the model.
    stored = RunFolder(tmp_path / "run").subsets()["effects"]
    assert {one["column"] for one in stored["bank"]} == {"age", "income"}
    assert json.loads(json.dumps([Effect.from_json(one).to_json() for one in stored["shop"]])) == stored["shop"]
    page = write_report(tmp_path / "run").read_text()
    assert "averaged over rows of its silo" in page
    assert "Importance of columns" in page


def test_importance_of_columns_and_silos():
    draw = np.random.default_rng(0)
    features, other = draw.normal(size=(500, 3)), draw.normal(size=(500, 1))
    theta = np.array([[2.0], [0.0], [-1.0]])
    labels = (features @ theta + other)[:, 0]

    def measure(phi):
        error = np.mean((phi[:, 0] - labels) ** 2) / 2
        return float(error), {"r2": float(1 - 2 * error / labels.var()), "none": None}

    columns = {"a": slice(0, 1), "b": slice(1, 2), "c": slice(2, 3)}
    silos = {
        "bank": SiloRows(features, lambda rows: rows @ theta, columns),
        "shop": SiloRows(other, lambda rows: rows, {"d": slice(0, 1)}),
    }
    found = {(one.silo, one.column): one for one in shuffled(silos, measure, 200, 3)}
    # The squared error of a shuffled column is the variance of its difference: (2 var) w^2, and half of it is the loss.
    assert found["bank", "a"].loss == pytest.approx(4 * features[:, 0].var(), rel=0.03)
    assert found["bank", "b"].loss == 0
    assert found["bank", "c"].loss == pytest.approx(features[:, 2].var(), rel=0.03)
    assert found["bank", "a"].metrics["r2"] == pytest.approx(-2 * found["bank", "a"].loss / labels.var())
    assert "none" not in found["bank", "a"].metrics
    # A silo of one column is that column, and one seed is one result.
    assert found["shop", ""].loss == pytest.approx(found["shop", "d"].loss, rel=1e-12)
    assert found == {(one.silo, one.column): one for one in shuffled(silos, measure, 200, 3)}
    assert [one.column for one in shuffled(silos, measure, 5, 3)][:4] == ["", "a", "c", "b"]


def test_importance_of_a_model_is_that_of_its_own_predictions(models, frames):
    model, tables = models["standard"], without_labels(frames)
    # Ids, not places, put rows together.
    turned = {"bank": tables["bank"], "shop": {name: values[::-1] for name, values in tables["shop"].items()}}
    labels = frames["bank"]["paid"]
    found = model.permutation_importance(tables, labels, repeats=2)
    assert found == model.permutation_importance(turned, labels, repeats=2)
    one = next(row for row in found.rows if row.column == "age")
    order = [np.random.default_rng([0, repeat]).permutation(NUM_ROWS) for repeat in range(2)]
    truth = np.array(labels) == "yes"

    def figures(bank):
        scores = model.scores({**tables, "bank": bank})
        accuracy = np.mean((scores[:, 0] > 0) == truth)
        return np.mean(np.logaddexp(0, scores[:, 0]) - truth * scores[:, 0]), accuracy

    before = figures(tables["bank"])
    after = [figures({**tables["bank"], "age": tables["bank"]["age"][places]}) for places in order]
    assert one.loss == pytest.approx(np.mean([loss for loss, _ in after]) - before[0], abs=1e-5)
    assert one.metrics["accuracy"] == pytest.approx(np.mean([right for _, right in after]) - before[1])
    assert repr(found) == "Importances of 4 columns of 2 silos (bank, shop)"
    with pytest.raises(ValueError, match=r"table of silo 'shop' is missing: .* Between real parties it is not offered"):
        model.permutation_importance({"bank": tables["bank"]}, labels)
    with pytest.raises(ValueError, match="label 'maybe' is none of the model's classes: no, yes"):
        model.permutation_importance(tables, ["maybe", *labels[1:]])
    with pytest.raises(ValueError, match="there are 3 labels for 160 rows: give one per row"):
        model.permutation_importance(tables, labels[:3])
    with pytest.raises(ValueError, match="repeats = 0: shuffle at least once"):
        model.permutation_importance(tables, labels, repeats=0)


def test_the_command_writes_what_the_model_says(models, frames, tmp_path):
    model = models["piecewise"]
    for silo, own in frames.items():
        with (tmp_path / f"{silo}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(own)
            cells = (["" if str(value) == "nan" else value for value in of] for of in own.values())
            writer.writerows(zip(*cells, strict=True))
    model.save(tmp_path / "model.tdcd")
    run, data = tmp_path / "model.tdcd", [f"--data={silo}={tmp_path / silo}.csv" for silo in frames]
    assert command("export", run, "--effects", "--out", tmp_path / "effects.csv", cwd=tmp_path).exit_code == 0
    with (tmp_path / "effects.csv").open() as file:
        lines = [*csv.DictReader(file)]
    expected = [
        (silo, one.column, point, float(value))
        for silo, own in model.effects().silos.items()
        for one in own
        for point, value in zip(one.points, one.values[:, 0], strict=True)
    ]
    assert [(line["silo"], line["column"], line["value"], float(line["effect"])) for line in lines] == expected
    asked = ["export", run, "--importance", "--label", "paid", "--out", tmp_path / "importance.csv", *data]
    assert command(*asked, cwd=tmp_path).exit_code == 0
    with (tmp_path / "importance.csv").open() as file:
        lines = [*csv.DictReader(file)]
    found = model.permutation_importance(without_labels(frames), frames["bank"]["paid"])
    assert [(line["silo"], line["column"]) for line in lines] == [(one.silo, one.column) for one in found.rows]
    np.testing.assert_allclose([float(line["loss"]) for line in lines], [one.loss for one in found.rows], atol=1e-9)
    refused = command("export", run, "--importance", "--effects", cwd=tmp_path)
    assert refused.exit_code == 2
    assert "--effects and --importance are two files: give one of the two" in refused.stderr
