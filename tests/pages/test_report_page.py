"""The page of a run: what it says, that it stands alone, and what it refuses."""

import json
import re
import subprocess
import sys

import pytest
from run_folders import record, silo

from support.well_formed import Page
from tdcd.pages.report import protections, write_report

pytestmark = pytest.mark.quick

SCRIPT = '<script>alert("1")</script>'


def test_the_page_shows_the_run(make_run):
    path = write_report(make_run())
    page = Page(path.read_text(encoding="utf-8"))
    assert path.name == "report.html"
    text = " | ".join(page.texts)
    assert "2 silos · 7 clients · 1,438 training samples · 359 held out" in text
    # The last of the made-up lines, worked out by hand: 2.3 * 0.98**200 + 0.02 and 1 - 0.9 * 0.98**200.
    assert "train loss | 0.06045 | 2.320 before training" in text
    assert "held-out accuracy | 0.9542 | 0.07000 before training" in text
    assert "rounds | 200 | 2,000 local steps" in text
    assert "sent in rounds | 350 kB | 1.75 kB per round" in text
    assert "time | 20 s | 0.1 s per round" in text
    assert "figure | train | held-out | loss | 0.06045 | 0.1605 | accuracy | 0.9842 | 0.9542" in text
    assert "hub to hub | 50.0 kB in 400 messages (14%)" in text
    assert "train.step_size | 0.05" in text
    assert 'federation.silos | [{"name": "bank", "columns": ["income", "age"]}]' in text
    assert "tdcd run --resume run" in text
    for caption in ("Loss over rounds", "Loss over bytes sent", "Accuracy over rounds", "AUC over rounds"):
        assert caption in page.texts
    assert "synthetic data" not in text


def test_the_page_names_the_clients_that_hubs_continued_without(make_run):
    assert "Absent clients" not in write_report(make_run()).read_text(encoding="utf-8")
    gone = {"absent": {"client.bank.north": [1, 2, 4]}, "unscored": ["client.bank.north"]}
    more = {"absent": {"client.bank.north": [5], "client.shop.<c>": [9]}, "unscored": []}
    lines = [record(0, 2.0), record(5, 1.0, **gone), record(10, 0.5, **more)]
    path = write_report(make_run(history=lines, folder="without"))
    text = " | ".join(Page(path.read_text(encoding="utf-8")).texts)
    assert "client | rounds without it | which | evaluations without it" in text
    assert "client.bank.north | 4 | 1–2, 4–5 | 1 | client.shop.<c> | 1 | 9 | 0" in text


def test_the_page_says_what_is_kept_from_whom():
    assert not [*protections({})]
    for weighted in ({"train": {"class_weights": "balanced"}}, {"silos": [{"name": "a", "weight": "w"}]}):
        assert not [*protections(weighted)]
        (text,) = protections({"federation": {"labels": "a"}, **weighted})
        assert "They also get what samples weigh." in text
    federation, exchange = {"labels": "<bank>", "label_epsilon": 0.5}, {"protect": "mask", "protect_blocks": True}
    (text,) = protections({"federation": federation, "exchange": exchange})
    assert "Only &lt;bank&gt; has labels; the other silos get slopes of the loss" in text
    assert "randomised with epsilon = 0.5; " in text
    assert "the hub of &lt;bank&gt; gets the sum of the other silos' phi, not each silo's" in text.replace(
        "&#x27;", "'"
    )
    assert "the weighted sum of its clients" in text


def test_the_page_stands_alone(make_run):
    text = write_report(make_run()).read_text(encoding="utf-8")
    page = Page(text)
    assert "://" not in text
    assert page.tags.count("script") == 1
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not {"img", "link", "iframe", "object", "image"} & set(page.tags)
    assert "@import" not in text
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    links += re.findall(r"url\((.*?)\)", text)
    assert links == []


def test_every_figure_describes_itself(make_run):
    text = write_report(make_run()).read_text(encoding="utf-8")
    drawings = re.findall(r"<svg [^>]*>", text)
    assert len(drawings) == 5
    assert all('role="img"' in drawing and "aria-label=" in drawing for drawing in drawings)
    assert "loss against round: train from 2.320 to 0.06045, held-out from 2.420 to 0.1605" in text


@pytest.mark.slow
def test_the_same_folder_gives_the_same_bytes_in_another_process(make_run):
    folder = make_run()
    first = write_report(folder).read_bytes()
    code = "import sys, pathlib, tdcd.pages.report; tdcd.pages.report.write_report(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, folder], check=True, env={"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"})
    assert (folder / "report.html").read_bytes() == first


def test_hostile_names_stay_text(make_run):
    hostile = f"{SCRIPT}$x^2$ \x07 </title>"
    lines = [record(index, 1.0, None, {"train": {hostile: 0.5}}) for index in range(2)]
    folder = make_run(name=hostile, silos=[silo(hostile, [2], [3], [hostile, "b"])], history=lines, folder="<b>&'")
    (folder / "config.toml").write_text(f"'{SCRIPT}' = '{SCRIPT}'\n", encoding="utf-8")
    text = write_report(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert SCRIPT not in text
    assert page.tags.count("script") == 1
    assert hostile.replace("\x07", "\\x07") in page.texts
    assert "\x07" not in text
    assert any("tdcd run --resume '<b>&'\"'\"''" in part for part in page.texts)


def test_synthetic_data_is_called_so(make_run):
    page = Page(write_report(make_run(name="Synthetic superconductors")).read_text(encoding="utf-8"))
    assert "synthetic data" in page.texts


def test_a_history_of_one_line(make_run):
    folder = make_run(history=[record(0, 2.3, None, {"train": {"accuracy": 0.1, "auc": None}})])
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    text = " | ".join(page.texts)
    assert "So far the history holds only the evaluation before training" in text
    assert "train accuracy | 0.1000" in text
    assert "sent in rounds | 0 bytes | time" in text
    assert "Loss over rounds" not in text


def test_a_diverged_run_says_so_and_shows_its_last_figures(make_run):
    lines = [record(index, 10.0**index, 10.0**index, {"train": {"rmse": 10.0**index}}) for index in (0, 3)]
    end = record(4, None, None, {"train": {"rmse": None, "r2": None}}, diverged=True)
    text = " | ".join(Page(write_report(make_run(history=[*lines, end])).read_text(encoding="utf-8")).texts)
    assert "This run diverged: the loss stopped being a finite number by round 4." in text
    assert "The figures below are those of round 3." in text
    assert "train loss | diverged | 1.000 before training" in text
    assert "figure | train | held-out | loss | 1,000 | 1,000 | RMSE | 1,000 | –" in text


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        # The run has 200 rounds: this one is not over.
        ((0.69, 139.7), ""),
        ((0.69, 12.0, 139.7), "the training loss ended at 139.7, above 0.69 before training."),
        ((0.69, 0.1, 0.6), "the training loss ended at 0.6, far above its lowest, 0.1 after round 100."),
    ],
)
def test_a_run_that_made_its_model_worse_says_so_when_it_is_over(make_run, losses, said):
    lines = [record(100 * index, loss, loss, {"train": {"rmse": loss}}) for index, loss in enumerate(losses)]
    text = " | ".join(Page(write_report(make_run(history=lines)).read_text(encoding="utf-8")).texts)
    assert ("This run diverged" in text) == bool(said)
    assert not said or f"This run diverged: {said} The figures below are those of round 200." in text


def test_what_evaluations_sent_has_lines_of_its_own(make_run):
    sent, messages = ({"client_to_hub": size, "hub_to_client": size, "hub_to_hub": 0} for size in (3_000_000, 7))
    line = record(5, 1.0, 1.0, {"train": {"rmse": 1.0}}, evaluation_bytes=sent, evaluation_messages=messages)
    lines = [record(0, 2.0, 2.0, {"train": {"rmse": 1.0}}), line]
    text = " | ".join(Page(write_report(make_run(history=lines)).read_text(encoding="utf-8")).texts)
    assert "sent for evaluation | 6.00 MB | 3.00 MB per evaluation" in text
    assert "evaluation, client to hub | 3.00 MB in 7 messages" in text


def test_a_run_that_diverged_at_once(make_run):
    end = record(0, None, None, {"train": {"rmse": None}}, diverged=True)
    text = " | ".join(Page(write_report(make_run(history=[end])).read_text(encoding="utf-8")).texts)
    assert "train loss | diverged | – before training" in text


@pytest.mark.parametrize("name", ["config.toml", "federation.json", "history.jsonl"])
def test_a_missing_file_is_named(make_run, name):
    folder = make_run()
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"run is not a run folder: it has no {name}$"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder: give the folder that a run wrote"):
        write_report(tmp_path / "nowhere")


def test_a_bad_history_line_is_named(make_run):
    folder = make_run()
    lines = (folder / "history.jsonl").read_text().splitlines()
    lines[2] = lines[2][:20]
    (folder / "history.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"history\.jsonl, line 3 "):
        write_report(folder)


def test_an_empty_history_is_refused(make_run):
    with pytest.raises(ValueError, match=r"history\.jsonl is empty: let the run get as far as its first evaluation"):
        write_report(make_run(history=[]))


def test_bad_toml_is_named_with_its_line(make_run):
    folder = make_run()
    (folder / "config.toml").write_text("seed = 1\nrounds = \n")
    with pytest.raises(ValueError, match=r"config\.toml is not valid TOML: .*line 2"):
        write_report(folder)


def test_every_problem_of_the_federation_is_named(make_run):
    folder = make_run()
    silos = [{**silo("a", [2], [3]), "clients": [0]}, {"name": "b"}]
    (folder / "federation.json").write_text(json.dumps({"name": "x", "num_samples": 3, "num_test": 0, "silos": silos}))
    with pytest.raises(ValueError, match=r"federation\.json does not describe a federation: ") as caught:
        write_report(folder)
    assert "silos.0.clients.0: Input should be greater than 0" in str(caught.value)
    assert "silos.1.feature_shape: Field required" in str(caught.value)


def test_json_that_ends_early_is_named(make_run):
    folder = make_run()
    (folder / "federation.json").write_text('{"name": "x", ')
    with pytest.raises(ValueError, match=r"federation\.json is damaged: Expecting property name"):
        write_report(folder)


@pytest.mark.slow
def test_importing_the_report_leaves_matplotlib_alone():
    code = "import sys, tdcd.pages.report; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
