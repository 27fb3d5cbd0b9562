"""Weights per silo, what silos contribute, settings by section, and printing."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from run_folders import silo

from support.well_formed import Page
from tdcd.config import Config
from tdcd.pages.kit.html import SCRIPT
from tdcd.pages.report import write_report
from tdcd.records.run_folder import RunFolder, toml_text

pytestmark = pytest.mark.quick

SILOS = [silo("bank", [4], [9], ["age", "income", "debt <b>", "bias"]), silo("shop", [2], [9], ["visits", "spent"])]
LINEAR = '[model]\nblock = "linear"\nloss = "{}"\n[data]\nstandardize = true\n'


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def words(folder):
    return " | ".join(page_of(folder).texts)


def linear_run(make_run, *weights, loss="logistic", names=("bank", "shop")):
    folder = make_run(silos=SILOS)
    (folder / "config.toml").write_text(LINEAR.format(loss))
    RunFolder(folder).save_blocks(names, [{"weight": np.array(one)} for one in weights], 5)
    return folder


def test_weights_are_ordered_by_size_and_the_bias_is_left_out(make_run):
    folder = linear_run(make_run, [[0.5], [-2.0], [0.25], [9.0]], [[1.0], [0.0]])
    text = words(folder)
    assert "Weights per silo" in text
    assert "one standard deviation more of a column, or a category that is there, adds to the logarithm of" in text
    assert re.search(r"income \| -2\.000 \|.* age \| 0\.5000 \|.* debt <b> \| 0\.2500", text)
    assert "9.000" not in text
    # One scale for all silos.
    bars = r'<title>(income|visits): [^<]*</title>.*?<rect [^>]* width="([\d.]+)"'
    lengths = {name: float(width) for name, width in re.findall(bars, write_report(folder).read_text(encoding="utf-8"))}
    assert lengths["income"] == pytest.approx(2 * lengths["visits"], rel=1e-3)


def test_a_hub_shows_its_own_weights_only(make_run):
    text = words(linear_run(make_run, [[0.5], [-2.0], [0.25], [9.0]], names=("bank",)))
    assert "income" in text
    assert "visits: " not in text


def test_weights_of_several_classes_are_cells(make_run):
    folder = linear_run(make_run, np.arange(12.0).reshape(4, 3), np.ones((2, 3)), loss="softmax")
    (folder / "labels.json").write_text('{"task": "multiclass", "classes": ["red", "green", "<blue>"]}')
    text = words(folder)
    assert "adds to the score of each class" in text
    assert "debt <b>, <blue>: 8" in text


@pytest.mark.parametrize("config", [LINEAR.format("logistic").replace("linear", "mlp"), ""])
def test_other_blocks_have_no_weights(make_run, config):
    folder = linear_run(make_run, [[0.5], [-2.0], [0.25], [9.0]], [[1.0], [0.0]])
    (folder / "config.toml").write_text(config)
    assert "Weights per silo" not in words(folder)


def subsets_of(**figures):
    found = [
        {
            "silos": [] if name == "none" else name.split("_"),
            "loss": loss,
            "metrics": {"accuracy": 1 - loss, "auc": None},
        }
        for name, loss in figures.items()
    ]
    return {"silos": ["bank", "shop"], "silo_dropout": 0.0, "samples": "test", "subsets": found}


def test_what_each_silo_contributes(make_run):
    folder = make_run(silos=SILOS)
    (folder / "subsets.json").write_text(json.dumps(subsets_of(none=0.9, bank=0.5, shop=0.75, bank_shop=0.25)))
    text = words(folder)
    assert "What each silo contributes" in text
    assert "How much larger the loss is without a silo: bank 0.5000, shop 0.2500" in text
    assert (
        "silos that are there | held-out loss | held-out accuracy | held-out AUC | all silos | 0.2500 | 0.7500 | – | "
        "bank | 0.5000 | 0.5000 | – | shop | 0.7500 | 0.2500 | – | no silo | 0.9000 | 0.1000 | –"
    ) in text
    assert "its mean takes its place" in text
    (folder / "subsets.json").write_text('{"subsets": [{"silos": ["bank"]}], "silos": ["bank", "shop"]}')
    with pytest.raises(ValueError, match=r"subsets\.json is damaged: KeyError"):
        write_report(folder)
    (folder / "subsets.json").unlink()
    assert "What each silo contributes" not in words(folder)


def test_settings_that_differ_come_first_and_the_others_are_folded(make_run):
    folder = make_run()
    keys = Config().model_dump()
    keys["train"] |= {"rounds": 7, "step_size": 0.5}
    keys["silos"] = [{"name": "bank", "clients": 3, "period": 1}]
    keys["federation"] |= {"bias": False, "strips": True}
    (folder / "config.toml").write_text(toml_text(keys))
    text = write_report(folder).read_text(encoding="utf-8")
    first, _, rest = text.partition("<details>")
    for key in ("train.rounds", "train.step_size", "silos.clients"):
        assert key in first
        assert key not in rest
    # What the data decides counts as a default where it decided it.
    for key in ("train.local_steps", "federation.bias", "federation.strips", "silos.period", "data.source"):
        assert key not in first
        assert key in rest
    assert "more settings have their defaults" in rest
    assert "silo bank" in first


def test_settings_without_any_change(make_run):
    folder = make_run()
    (folder / "config.toml").write_text(toml_text(Config().model_dump()))
    assert "Every setting has its default." in words(folder)


def test_the_script_of_all_pages_is_the_only_one_that_the_policy_allows(make_run):
    text = write_report(make_run()).read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'\"", text)
    assert base64.b64decode(allowed) == hashlib.sha256(script.encode()).digest()
    assert script == SCRIPT
    assert "default-src 'none'" in text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "import"):
        assert word not in script


def test_paper_is_light_and_shows_what_is_folded(make_run):
    text = write_report(make_run()).read_text(encoding="utf-8")
    assert "@media screen and (prefers-color-scheme: dark)" in text
    _, _, paper = text.partition("@media print")
    assert "::details-content { content-visibility: visible" in paper
    assert re.search(r"figure[^{]*\{ break-inside: avoid", paper)
