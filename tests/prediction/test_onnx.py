"""An ONNX file gives what ``predict`` gives, from the same raw cells: onnxruntime against :class:`tdcd.Model`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import tdcd
from support.command import tdcd as command
from tdcd import Cnn, Ensemble, Federation, Hidden, Linear, Loss, Mlp, Model, Objective, Pairs, load
from tdcd.prediction.scores import StandIns
from tdcd.tables.cells import LARGEST
from tdcd.tables.errors import TableError

onnx = pytest.importorskip("onnx", reason="ONNX files need the extra tdcd[onnx]")
runtime = pytest.importorskip("onnxruntime")

ROWS = 300
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
"""Of the largest score, or of 1 if that is larger; of the largest amount; of probabilities as they are."""


def tables(rows=ROWS, seed=0):
    """An insurer's and an employer's rows of the same people: amounts, dates, truths, names, blanks of all kinds."""
    draw = np.random.default_rng(seed)
    age, gain = draw.uniform(17, 90, rows).round(1), draw.lognormal(6, 2, rows)
    gain[draw.random(rows) < 0.2] = np.nan
    job = draw.choice(["clerk", "cook", "driver", "nurse", "?", "pilot"], rows, p=[0.3, 0.3, 0.2, 0.1, 0.08, 0.02])
    since = pd.Timestamp("2019-03-01") + pd.to_timedelta(draw.integers(0, 2000, rows) * 3600, "s")
    insurer = pd.DataFrame({"job": job, "age": age, "capital gain": gain, "since": since})
    hours = draw.integers(10, 60, rows).astype(float)
    hours[draw.random(rows) < 0.1] = -999
    employer = pd.DataFrame({"hours": hours, "remote": draw.random(rows) < 0.5})
    employer["country"] = draw.choice(["IT", "NO", "PE", ""], rows, p=[0.6, 0.2, 0.1, 0.1])
    wants = (age > 40) ^ (job == "cook") ^ (draw.random(rows) < 0.1)
    insurer["income"] = np.where(wants, ">50K", "<=50K")
    insurer["level"] = (age // 30).astype(int)
    insurer["amount"] = 1000 + 30 * age + draw.normal(0, 40, rows)
    return {"insurer": insurer, "employer": employer}


LABELS = ("income", "level", "amount")


def made(frames, label, block, loss, *, combine=None, dtype="float32", seed=7, **keys):
    """A model of these frames with random parameters: what it predicts matters, not how well."""
    frames = {name: frame.drop(columns=[*{*LABELS} - {label}], errors="ignore") for name, frame in frames.items()}
    data = {"blank": ["?", "-999"], "rare": 8} | keys.pop("data", {})
    federation = Federation.from_frames(frames, label=label, clients=2, data=data, dtype=dtype, **keys)
    objective = Objective(loss) if combine is None else Objective(loss, combine=combine)
    return random_model(federation, block, objective, dtype, seed)


def random_model(federation, block, objective, dtype, seed=7):
    draw = np.random.default_rng(seed)
    outputs = objective.num_outputs([federation.labels, federation.test_labels])
    width, blocks, trees = objective.combine.width(outputs), [block] * federation.num_silos, []
    for silo in federation.silos:
        template = jax.eval_shape(lambda silo=silo: block.init(jax.random.key(0), silo.feature_shape, width))
        fan_in = np.prod(silo.feature_shape) ** 0.5
        trees.append(
            jax.tree.map(lambda leaf, size=fan_in: draw.normal(0, 2 / size, leaf.shape).astype(dtype), template)
        )
    return Model.of(federation, blocks, trees, objective, dtype)


@dataclass
class Served:
    """A file in onnxruntime."""

    session: "runtime.InferenceSession"

    @classmethod
    def of(cls, path):
        onnx.checker.check_model(str(path), full_check=True)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        return cls(runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))

    @property
    def metadata(self):
        return self.session.get_modelmeta().custom_metadata_map

    def __call__(self, frames):
        """The outputs by name, of raw columns by silo."""
        given = {}
        for one in self.session.get_inputs():
            silo, column = one.name.split("/", 1)
            cells = frames[silo][column]
            given[one.name] = texts(cells) if one.type == "tensor(string)" else numbers(cells)
        return dict(zip([one.name for one in self.session.get_outputs()], self.session.run(None, given), strict=True))


def texts(cells):
    return np.array(["" if cell is None else str(cell) for cell in cells], object)


def numbers(cells):
    """Dates as days since 1970-01-01, true and false as 1 and 0."""
    if getattr(cells, "dtype", None) is not None and np.dtype(cells.dtype).kind == "M":
        return (cells - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    return np.asarray(cells, np.float64)


def days(frames):
    """The same frames with what onnxruntime takes in place of pandas' dates."""
    return {
        name: frame.assign(since=numbers(frame["since"]).to_numpy()) if "since" in frame else frame
        for name, frame in frames.items()
    }


def same_as_predict(model, folder, frames, given=None):
    """Whether the joined file, the silos' files and the file of the sum all give what the model gives."""
    given = frames if given is None else given
    model.to_onnx(folder / "joined.onnx")
    served, expected, close = Served.of(folder / "joined.onnx")(given), model.scores(frames), TOLERANCE[model.dtype]
    assert served["scores"].dtype == expected.dtype == model.dtype
    scale = max(1.0, abs(expected).max())
    np.testing.assert_allclose(served["scores"], expected, rtol=0, atol=close * scale)
    if model.loss.target == "amount":
        amounts = model.predict(frames)
        np.testing.assert_allclose(served["prediction"], amounts, rtol=0, atol=close * abs(amounts).max())
    else:
        sure = np.ptp(np.hstack([expected, 0 * expected]), axis=1) > 10 * close * scale
        labels = model.predict(frames)
        assert (served["prediction"] == labels)[sure].all()
        assert {type(label) for label in served["prediction"].tolist()} == {type(label) for label in labels.tolist()}
        np.testing.assert_allclose(served["probabilities"], model.predict_proba(frames), rtol=0, atol=close * scale)
    phi = {}
    for silo in model.silos:
        model.to_onnx(folder / f"{silo}.onnx", silo)
        own = Served.of(folder / f"{silo}.onnx")
        assert {one.name.split("/")[0] for one in own.session.get_inputs()} == {silo}
        phi[silo] = {"phi": own(given)["phi"]}
    model.to_onnx(folder / "sum.onnx", from_phi=True)
    summed = {f"{silo}/phi": one["phi"] for silo, one in phi.items()}
    session = Served.of(folder / "sum.onnx").session
    for output, value in zip(session.get_outputs(), session.run(None, summed), strict=True):
        np.testing.assert_array_equal(value, served[output.name])
    if model.head.is_additive:
        np.testing.assert_array_equal(
            sum([*summed.values()][1:], start=summed[f"{model.silos[0]}/phi"]), served["scores"]
        )
    return served


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("label", "loss"),
    [("income", "logistic"), ("level", "softmax"), ("amount", "squared"), ("amount", "huber"), ("level", "poisson")],
)
def test_every_loss_predicts_in_its_own_words(tmp_path, label, loss, dtype):
    frames = tables()
    model = made(frames, label, Linear(), loss, dtype=dtype)
    served = same_as_predict(model, tmp_path, frames, days(frames))
    assert len({*served["prediction"].tolist()}) > 1


PIECEWISE = {"model": {"encoding": "piecewise"}}
RAW_PIECEWISE = {"model": {"encoding": "piecewise", "bins": 7}, "data": {"standardize": False}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "keys", [{}, {"model": {"bins": 6}}, {"data": {"standardize": False}}, PIECEWISE, RAW_PIECEWISE], ids=str
)
@pytest.mark.parametrize("block", [Linear(), Mlp((9, 5)), Ensemble((6, 5), 3)])
def test_every_encoding_with_every_block_of_columns(tmp_path, block, keys, dtype):
    frames = tables()
    model = made(frames, "income", block, "logistic", dtype=dtype, **keys)
    # Other rows than those of the preparation: values outside of the bins, and names that nobody has seen.
    others = tables(40, seed=1)
    others["insurer"].loc[:2, "age"], others["insurer"].loc[1, "job"] = [-5.0, np.nan, 1e6], "astronaut"
    others["employer"].loc[:1, "country"] = ["XX", None]
    with pytest.warns(UserWarning, match="astronaut"):
        same_as_predict(model, tmp_path, others, days(others))


@pytest.mark.parametrize("head", [Hidden(3), Pairs(3)])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_head_makes_scores_of_the_sum(tmp_path, loss, head):
    frames = tables()
    model = made(frames, "income" if loss == "logistic" else "level", Mlp((4,)), loss, combine=head)
    served = same_as_predict(model, tmp_path, frames, days(frames))
    assert served["scores"].shape == (ROWS, model.num_outputs)
    assert Served.of(tmp_path / "joined.onnx").metadata["head"] == head.keys["head"]


@pytest.mark.parametrize("source", ["breast_cancer", "diabetes", "digits"])
def test_data_that_ships_with_the_package(tmp_path, source):
    table = load(source)
    federation = Federation.cut(*tdcd.standardize(*table.split(0.2, 0)), silos=3 if not table.is_images else 2)
    loss = {"diabetes": "squared", "breast_cancer": "logistic", "digits": "softmax"}[source]
    model = random_model(federation, Mlp((6,)), Objective(loss), "float32")
    start, frames = 0, {}
    for silo in federation.silos:
        if table.is_images:
            width = silo.feature_shape[1]
            frames[silo.name] = {"images": table.features[:, :, start : start + width]}
            start += width
        else:
            columns = [table.columns.index(name) for name in model.parts[silo.name].preparation.parts]
            frames[silo.name] = pd.DataFrame(table.features[:, columns], columns=[table.columns[c] for c in columns])
    rows = {silo: frame["images"] if table.is_images else frame for silo, frame in frames.items()}
    model.to_onnx(tmp_path / "joined.onnx")
    served, expected = Served.of(tmp_path / "joined.onnx")(frames), model.scores(rows)
    np.testing.assert_allclose(served["scores"], expected, rtol=0, atol=1e-6 * max(1, abs(expected).max()))


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "colour"])
def test_a_convolutional_network(tmp_path, channels):
    draw = np.random.default_rng(3)
    images = draw.normal(0, 2, (60, 13, 14, *channels)).astype(np.float32)
    halves = {"silo1": images[:, :, :7], "silo2": images[:, :, 7:]}
    silos = tuple(tdcd.Silo(name, half, (np.arange(60),)) for name, half in halves.items())
    federation = Federation(silos, draw.integers(0, 3, 60))
    model = random_model(federation, Cnn((6, 5), (3, 2), 12), Objective("softmax"), "float32")
    model.to_onnx(tmp_path / "joined.onnx")
    served = Served.of(tmp_path / "joined.onnx")({silo: {"images": half} for silo, half in halves.items()})
    expected = model.scores(halves)
    np.testing.assert_allclose(served["scores"], expected, rtol=0, atol=1e-6 * abs(expected).max())
    twice = jax.tree.map(lambda leaf: leaf.astype(np.float64), model.parts["silo1"].parameters)
    parts = {**model.parts, "silo1": model.parts["silo1"]._replace(parameters=twice)}
    with pytest.raises(ValueError, match=r"^silo 'silo1' has a block of kind 'Cnn' in float64, which an ONNX file"):
        replace(model, parts=parts).to_onnx(tmp_path / "refused.onnx")
    assert not (tmp_path / "refused.onnx").exists()


def test_no_rows_and_one_row(tmp_path):
    frames = tables()
    model = made(frames, "level", Mlp((4,)), "softmax")
    model.to_onnx(tmp_path / "joined.onnx")
    served, given = Served.of(tmp_path / "joined.onnx"), days(frames)
    for rows in (0, 1):
        found = served({name: frame.iloc[:rows] for name, frame in given.items()})
        assert found["scores"].shape == found["probabilities"].shape == (rows, 3 if model.num_outputs == 3 else 4)
        assert found["prediction"].shape == (rows,)


@pytest.mark.parametrize("label", ["income", "level"])
def test_a_cell_that_predict_refuses_gives_nothing_that_looks_like_a_prediction(tmp_path, label):
    frames = tables()
    for frame in frames.values():
        frame.replace({"?": "cook", "": "IT", -999.0: 40.0}, inplace=True)
    frames["insurer"]["capital gain"] = frames["insurer"]["capital gain"].fillna(1.0)
    model = made(frames, label, Mlp((4,)), "logistic" if label == "income" else "softmax", data={"missing": "refuse"})
    given = days(same := tables(6, seed=4))
    for name in frames:
        given[name] = days(frames)[name].iloc[:6].copy()
        same[name] = frames[name].iloc[:6].copy()
    changes = [("insurer", "age", np.nan), ("insurer", "age", 2 * LARGEST), ("employer", "hours", -999.0)]
    changes += [("insurer", "capital gain", -np.inf), ("insurer", "job", "?")]
    for row, (silo, column, value) in enumerate(changes):
        given[silo].loc[row, column] = value
        wrong = {name: frame.copy() for name, frame in same.items()}
        wrong[silo].loc[row, column] = value
        with pytest.raises(TableError):
            model.predict(wrong)
    model.to_onnx(tmp_path / "joined.onnx")
    served = Served.of(tmp_path / "joined.onnx")(given)
    for name in ("scores", "probabilities"):
        assert np.isnan(served[name]).all(axis=1).tolist() == [True] * 5 + [False]
    nothing = "" if label == "income" else np.iinfo(np.int64).min
    assert served["prediction"].tolist() == [nothing] * 5 + [model.predict(same)[5]]


def test_columns_may_be_called_as_they_like(tmp_path):
    draw = np.random.default_rng(0)
    names = ["phi", "scores", "/0", "/constant/0", "a/b", "b a\t\"'", "größe", "prediction"]
    frames = {name: pd.DataFrame(draw.normal(size=(60, 8)), columns=names) for name in ("a", "a-b")}
    frames["a"]["y"] = draw.integers(0, 2, 60)
    federation = Federation.from_frames(frames, label="y")
    model = random_model(federation, Linear(), Objective("logistic"), "float32")
    same_as_predict(model, tmp_path, {name: frame[names] for name, frame in frames.items()})


def test_metadata_says_what_a_file_is_and_the_same_model_gives_the_same_bytes(tmp_path):
    frames = tables()
    model = made(frames, "income", Linear(), "logistic")
    for name, options in {"joined": {}, "insurer": {"silo": "insurer"}, "sum": {"from_phi": True}}.items():
        model.to_onnx(tmp_path / f"{name}.onnx", **options)
    model.save(tmp_path / "model.tdcd")
    Model.load(tmp_path / "model.tdcd").to_onnx(tmp_path / "new" / "again.onnx")
    assert (tmp_path / "new" / "again.onnx").read_bytes() == (tmp_path / "joined.onnx").read_bytes()
    joined, own, total = (Served.of(tmp_path / f"{name}.onnx").metadata for name in ("joined", "insurer", "sum"))
    assert [one["kind"] for one in (joined, own, total)] == ["joined", "silo", "sum"]
    assert json.loads(joined["classes"]) == json.loads(total["classes"]) == ["<=50K", ">50K"]
    assert "classes" not in own
    columns = {"job": "name", "age": "amount", "capital gain": "amount", "since": "amount"}
    assert json.loads(own["columns"]) == {"insurer": columns}
    assert json.loads(joined["digests"])["insurer"] == json.loads(own["digests"])["insurer"]
    assert json.loads(total["digests"]) == json.loads(total["columns"]) == {}
    assert own["tdcd_version"] == tdcd.__version__
    assert [own["loss"], own["dtype"], own["silo"], json.loads(own["silos"])] == [
        "logistic",
        "float32",
        "insurer",
        ["insurer", "employer"],
    ]
    other = made(frames, "income", Linear(), "logistic", seed=8)
    other.to_onnx(tmp_path / "other.onnx")
    assert Served.of(tmp_path / "other.onnx").metadata["digests"] != joined["digests"]
    inputs = {one.name: one.doc_string for one in onnx.load(tmp_path / "insurer.onnx").graph.input}
    assert "a date as days since 1970-01-01" in inputs["insurer/since"]
    assert "empty where it is blank" in inputs["insurer/job"]
    assert {node.domain for node in onnx.load(tmp_path / "joined.onnx").graph.node} == {"", "ai.onnx.ml"}


def test_without_a_silo_its_stand_in_takes_its_place(tmp_path):
    frames = tables()
    model = replace(
        made(frames, "level", Linear(), "softmax"), stand_ins=StandIns({"employer": [0.5, -1.0, 2.0, 0.25][:3]})
    )
    rows = {"insurer": frames["insurer"]}
    with pytest.warns(UserWarning, match="without silo 'employer', its phi is replaced by its mean"):
        expected = model.scores(rows, without=["employer"])
    with pytest.warns(UserWarning, match="without silo 'employer', its phi is replaced by its mean"):
        model.to_onnx(tmp_path / "alone.onnx", without=["employer"])
    served = Served.of(tmp_path / "alone.onnx")
    np.testing.assert_allclose(served(days(rows))["scores"], expected, rtol=0, atol=1e-6 * abs(expected).max())
    assert json.loads(served.metadata["without"]) == ["employer"]
    model.to_onnx(tmp_path / "own.onnx", "employer")
    assert json.loads(Served.of(tmp_path / "own.onnx").metadata["stand_in"]) == [0.5, -1.0, 2.0]


class Doubled(Mlp):
    """What inherits from a block may compute something else."""


class Shifted(Loss):
    name = "shifted"
    target = "amount"

    def losses(self, scores, labels):
        raise NotImplementedError

    def inverse_link(self, scores):
        return scores + 1


class Absolute(Shifted):
    name = "absolute"
    inverse_link = Loss.inverse_link


class Bent(Hidden):
    pass


def test_what_cannot_be_exported_is_refused_by_name(tmp_path):
    frames = tables()
    model = made(frames, "amount", Linear(), "squared")
    out = tmp_path / "m.onnx"

    def refused(message, model=model, path=out, kind=ValueError, **options):
        with pytest.raises(kind, match=f"^{message}$"):
            model.to_onnx(path, **options)
        assert not out.exists()

    parts = {name: part._replace(block=Doubled((3,))) for name, part in model.parts.items()}
    blocks = "it can have Linear, Mlp, Ensemble, Cnn"
    own_block = f"silo 'employer' has a block of kind 'Doubled', which an ONNX file cannot have; {blocks}"
    refused(own_block, replace(model, parts=parts), silo="employer")
    refused(
        "a head of kind 'Bent', which an ONNX file cannot have; it can have Sum, Hidden, Pairs",
        replace(model, head=Bent(2)),
    )
    own_loss = "the shifted loss has an inverse_link of its own, which is Python code: it cannot be in an ONNX file"
    refused(own_loss, replace(model, loss=Shifted()))
    refused(f"{tmp_path}/m.bin: the name of an ONNX file must end in .onnx", path=tmp_path / "m.bin")
    refused("there is no silo 'bank' in the model; there are insurer, employer", silo="bank")
    alone = "a file of silo 'employer' alone has no sum: leave out silo, or from_phi and without"
    refused(alone, silo="employer", from_phi=True)
    refused("without 'bank': there is no such silo; there are insurer, employer", without=["bank"])
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "m.onnx"
    refused(f"{where} cannot be written: {tmp_path}/file is no folder", path=where, kind=OSError)
    hidden = replace(
        model, label_encoding=model.label_encoding._replace(num_outputs=1), label_silo="insurer", where="here"
    )
    refused("here: only silo 'insurer' knows what predictions mean: predict there", hidden)
    hidden.to_onnx(tmp_path / "own.onnx", "employer")
    # A loss of one's own whose link is the usual one is no code that has to run.
    same_as_predict(replace(model, loss=Absolute()), tmp_path, frames, days(frames))


def test_the_command_writes_each_kind_of_file(tmp_path):
    model = made(tables(), "income", Linear(), "logistic")
    model.save(tmp_path / "model.tdcd")
    for options, said in {
        ("--out", "joined.onnx"): "ONNX: joined.onnx, predictions\n",
        ("--out", "own.onnx", "--silo", "employer"): "ONNX: own.onnx, phi of silo 'employer'\n",
        ("--out", "sum.onnx", "--from-phi"): "ONNX: sum.onnx, predictions from phi\n",
        ("--out", "alone.onnx", "--without", "employer"): "ONNX: alone.onnx, predictions\nwithout silo 'employer', it "
        "adds nothing: the model was trained without train.silo_dropout, and may be far off\n",
    }.items():
        done = command("export", "model.tdcd", "--onnx", *options, cwd=tmp_path)
        assert (done.exit_code, done.stdout) == (0, said), done.output
    model.to_onnx(tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == (tmp_path / "joined.onnx").read_bytes()
    for options, said in {
        ("--onnx",): "--out FILE is missing: the file to write, .onnx",
        ("--onnx", "--out", "sum.onnx"): "sum.onnx is there already: choose another --out, or replace it with --force",
        ("--onnx", "--out", "m.csv"): "m.csv: the name of an ONNX file must end in .onnx",
        ("--onnx", "--scorecard"): "--scorecard and --onnx are two files: give one of the two",
        ("--onnx", "--points", 3): "--points goes with --scorecard",
        ("--silo", "employer"): "--silo goes with --onnx",
        ("--from-phi",): "--from-phi goes with --onnx",
        ("--without", "employer"): "--without goes with --onnx",
    }.items():
        done = command("export", "model.tdcd", *options, cwd=tmp_path)
        assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n")


def test_a_hub_exports_its_own_silo_from_its_folder(tmp_path):
    keys = ["--set", "data.source=breast_cancer", "--set", "model.block=linear", "--set", "train.rounds=1"]
    assert command("run", *keys, "--out", "run", cwd=tmp_path).exit_code == 0
    whole = Model.load(tmp_path / "run")
    whole.to_onnx(tmp_path / "before.onnx", "silo1")
    (tmp_path / "run" / "model" / "silo2.safetensors").unlink()
    done = command("export", "run", "--onnx", "--silo", "silo1", "--out", "own.onnx", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "own.onnx").read_bytes() == (tmp_path / "before.onnx").read_bytes()
    done = command("export", "run", "--onnx", "--out", "joined.onnx", cwd=tmp_path)
    missing = Path("run") / "model" / "silo2.safetensors"
    assert (done.exit_code, done.stderr) == (
        2,
        f"Error: {missing} is missing: run has the part of 'silo1', not of silo 'silo2'\n",
    )
    # Whoever adds up what silos send needs no silo's part.
    assert command("export", "run", "--onnx", "--from-phi", "--out", "sum.onnx", cwd=tmp_path).exit_code == 0
