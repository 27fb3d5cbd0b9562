"""What Python users see of a run: short lines, tables in notebooks, the history as a frame and as a figure."""

import re
import shutil
from html import escape
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from tdcd import Federation, Model, train
from tdcd.core.notebook import MOST_ROWS, summary_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def result():
    draw = np.random.default_rng(0)
    bank = pd.DataFrame({"id": range(120), "age": draw.uniform(20, 70, 120), HOSTILE: draw.normal(size=120)})
    bureau = pd.DataFrame({"id": range(120), "late": draw.poisson(1, 120)})
    bank["default"] = np.where(bureau["late"] + (bank["age"] > 50) > 1, "yes & late", "no")
    frames = {"bank": bank, "bureau": bureau}
    federation = Federation.from_frames(frames, id="id", label="default", clients=[3, 1], federation={"labels": "bank"})
    return train(federation, "linear", "logistic", {"batch_size": 32, "step_size": 0.1}, rounds=10)


class Cells(HTMLParser):
    """The texts of a table's cells, row by row; elements that are never closed, and any attribute but a style, fail."""

    def __init__(self, markup):
        super().__init__()
        self.rows, self._open = [], []
        self.feed(markup)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        assert tag in {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
        assert {name for name, _ in attributes} <= {"style"}
        assert "url(" not in str(attributes)
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data


def test_every_object_is_one_short_line(result):
    losses = r"training loss 0\.\d+(, gradient norm \S+)?, held-out loss 0\.\d+"
    assert re.fullmatch(rf"Result: finished after round 10.*: {losses}", repr(result))
    assert repr(result.federation).startswith("Federation of 'files': 96 samples, 2 silos (bank: 3 columns, 3 clients;")
    assert repr(result.model) == ("Model of 2 silos (bank, bureau), logistic loss: predicts the classes no, yes & late")
    assert repr(result.model.coefficients()) == (
        "Coefficients of 2 silos (bank, bureau): 3 coefficients and the intercept"
    )


def test_a_notebook_shows_tables_in_which_nothing_is_markup_but_ours(result):
    federation = Cells(result.federation._repr_html_()).rows
    assert federation == [
        ["silo", "features", "clients", "rows per client", "labels"],
        ["bank", "3", "3", "32", "yes"],
        ["bureau", "1", "1", "96", "no"],
    ]
    head, loss, *metrics = Cells(result._repr_html_()).rows
    assert head == ["", "train", "held-out"]
    assert float(loss[1]) == pytest.approx(result.final.train_loss, rel=1e-3)
    assert [row[0] for row in metrics] == ["accuracy", "AUC"]
    model = Cells(result.model._repr_html_()).rows
    assert model[1:] == [["bank", f"age, {HOSTILE}", "Linear", "3"], ["bureau", "late", "Linear", "1"]]
    table = result.model.coefficients()
    first, *others = Cells(table._repr_html_()).rows[1:]
    assert first[:2] == ["", "intercept"]
    assert [row[1] for row in others] == ["age", HOSTILE, "late"]
    assert [float(row[2]) for row in others] == pytest.approx([row.values[0] for row in table.rows[:-1]], rel=1e-3)
    assert escape(HOSTILE) in table._repr_html_()


def test_early_stopping_is_no_lack_of_convergence(result):
    """There is no warning, which would fail; the line says which it was where steps are steered."""
    keys = {"rounds": 40, "evaluate_every": 2, "verbose": 0}
    stopped = train(result.federation, "linear", "logistic", {"batch_size": 32}, **keys, patience=1)
    assert stopped.n_iter < 40
    assert stopped.converged is None
    assert stopped.reason.startswith("stopped early")
    with pytest.warns(ConvergenceWarning, match="Limit of 2 rounds reached") as warned:
        short = train(result.federation, "linear", "logistic", {"batch_size": 32}, **{**keys, "rounds": 2})
    assert warned[0].filename == __file__
    assert short.converged is False
    assert repr(short).startswith("Result: finished after round 2, not converged: training loss")


def test_a_long_table_is_cut_and_counted():
    markup = summary_html("Model", "", ["column"], [[f"x{place}"] for place in range(MOST_ROWS + 7)])
    assert len(Cells(markup).rows) == 1 + MOST_ROWS
    assert "and 7 more" in markup


def test_a_part_of_a_model_says_what_is_not_here(result):
    model = result.model
    part = Model(model.silos, {"bank": model.parts["bank"]}, model.label_encoding, model.loss)
    assert Cells(part._repr_html_()).rows[2] == ["bureau", "not here", "", ""]
    assert "without bureau" in repr(part.coefficients())


def test_the_frame_is_the_history(result):
    frame = result.to_frame()
    assert frame["round"].tolist() == [0, 5, 10]
    for place, record in enumerate(result.history):
        line = frame.iloc[place]
        assert (line["train_loss"], line["test_loss"]) == (record.train_loss, record.test_loss)
        assert line["metrics.test.auc"] == record.metrics["test"]["auc"]
        assert line["bytes.hub_to_hub"] == record.bytes.hub_to_hub
    assert all(kind.kind in "if" for kind in frame.dtypes)


def test_the_plot_is_the_history_on_the_axes_that_are_given(result):
    ax = Figure().subplots()
    assert result.plot(ax=ax) is ax
    train_line, held_out = ax.get_lines()
    assert train_line.get_ydata().tolist() == [record.train_loss for record in result.history]
    assert held_out.get_ydata().tolist() == [record.test_loss for record in result.history]
    assert held_out.get_xdata().tolist() == [0, 5, 10]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train", "held-out"]
    with mpl.rc_context({"backend": "agg"}):
        assert result.plot("auc").get_ylabel() == "AUC"
        pyplot.close("all")
    with pytest.raises(ValueError, match="metric = 'f1': the history has loss, accuracy, auc"):
        result.plot("f1", ax)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the path: apt install chromium")
@pytest.mark.parametrize(("text", "ground"), [("rgb(17, 17, 17)", "#ffffff"), ("rgb(221, 221, 221)", "#111111")])
def test_tables_have_the_colours_of_the_page_that_they_are_on(result, text, ground):
    from playwright.sync_api import sync_playwright

    markup = result.model.coefficients()._repr_html_()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        # Without a doctype, as in some hosts of notebooks: there, tables take their colour from the body only.
        page.set_content(f"<div style='color: {text}; background: {ground}'>{markup}</div>")
        colours = page.eval_on_selector_all("td, th, p", "all => all.map(one => getComputedStyle(one).color)")
        browser.close()
    assert {*colours} == {text}
