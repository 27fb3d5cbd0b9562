import json

import pytest

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.pages.report import write_report
from tdcd.training.train import train_plan, train_silo_only


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A federation that trained: its plan and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    keys = {"data": {"source": "diabetes"}, "model": {"block": "linear"}, "train": {"step_size": 0.05, "rounds": 20}}
    planned = plan(check_config(keys))
    train_plan(planned, folder)
    return planned, folder


def test_each_silo_is_what_local_sgd_makes_of_it(joined, tmp_path):
    planned, folder = joined
    found = train_silo_only(planned, folder)
    assert json.loads((folder / "alone.json").read_text()) == found
    keys = planned.config.model_dump()
    keys["train"] |= {"algorithm": "local-sgd", "silo": "silo2"}
    result = train_plan(plan(check_config(keys)), tmp_path / "local")
    assert found["silo2"] == result.history[-1].metrics["test"]
    assert set(found) == {"silo1", "silo2"}


def test_each_silo_takes_the_steps_of_the_federations_variant(joined, tmp_path):
    keys = joined[0].config.model_dump()
    keys["train"] |= {"rounds": 5, "optimizer": "adam"}
    found = train_silo_only(plan(check_config(keys)), tmp_path)
    keys["train"] |= {"algorithm": "local-sgd", "silo": "silo2"}
    result = train_plan(plan(check_config(keys)), tmp_path / "local")
    assert found["silo2"] == result.history[-1].metrics["test"]


def test_the_report_shows_both(joined):
    _, folder = joined
    (folder / "alone.json").write_text(
        json.dumps({"silo1": {"rmse": 61.5, "r2": 0.25}, "silo2": {"rmse": None, "r2": -1}})
    )
    page = write_report(folder).read_text(encoding="utf-8")
    assert "What joining gains" in page
    assert '<th scope="row">silo1 alone</th><td>61.50</td><td>0.2500</td>' in page
    assert '<th scope="row">together</th>' in page
    (folder / "alone.json").write_text('{"silo1": {"rmse": 1}}')
    with pytest.raises(ValueError, match=r"alone.json is damaged: KeyError\('r2'\)"):
        write_report(folder)
    (folder / "alone.json").unlink()
    assert "What joining gains" not in write_report(folder).read_text(encoding="utf-8")


def test_nothing_is_written_when_it_is_stopped(joined):
    planned, folder = joined
    assert train_silo_only(planned, folder, should_stop=lambda: True) == {}
    assert not (folder / "alone.json").exists()
