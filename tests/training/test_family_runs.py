"""Members of the family in runs: interrupted and resumed, in batches, by a named engine, and refused."""

import json
import sys
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from tdcd import Federation, Linear, Objective, Settings, Variant, load, standardize, train
from tdcd.cli.app import app
from tdcd.compare.baselines import labelled_silos
from tdcd.config import ConfigError, check_config
from tdcd.config.members import variant_of
from tdcd.config.resolve import plan
from tdcd.core.family.optimizers import ClientOptimizer, HubOptimizer, direction
from tdcd.records.history import read_history
from tdcd.training.run import resume, run
from tdcd.training.sweep.runner import RunTask, run_all
from tdcd.training.train import simulate

BASE = {
    "dtype": "float64",
    "data": {"source": "diabetes", "rows": 200},
    "federation": {"silos": 2, "clients": [3, 2]},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 8, "local_steps": 3, "batch_size": 24, "step_size": 0.05},
    "evaluate": {"every": 2},
}
MEMBERS = {
    "hub momentum": {"hub_optimizer": "momentum", "momentum": 0.5},
    "hub adam": {"hub_optimizer": "adam", "hub_step_size": 0.05},
    "client adam and a schedule": {"optimizer": "adam", "schedule": "cosine"},
    "half of the clients": {"participation": 0.5, "draws": "permutation"},
    "overlap": {"overlap": 2},
}
SLOW = {
    key: value
    for key, value in {**BASE, "train": {**BASE["train"], "overlap": 1, "hub_optimizer": "momentum"}}.items()
    if key != "federation"
} | {"silos": [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": 2, "period": 4}]}


def config_of(seed=0, l2=0.01, data=(), **keys):
    sections = {"train": {**BASE["train"], **keys}, "data": {**BASE["data"], **dict(data)}}
    return check_config({**BASE, "seed": seed, "model": {"block": "linear", "l2": l2}, **sections})


def lines(folder):
    return [record.without_seconds() for record in read_history(folder / "history.jsonl")]


def models(folder):
    return {path.name: load_file(path) for path in sorted((folder / "model").glob("*.safetensors"))}


def assert_same_run(one, other):
    assert lines(one) == lines(other)
    assert models(one).keys() == models(other).keys()
    for name, tensors in models(one).items():
        for key, tensor in tensors.items():
            np.testing.assert_array_equal(tensor, models(other)[name][key])


def stopping_at(round_index):
    """What stops a run at this round."""
    seen = [0]

    def observe(progress):
        seen[0] = progress.round

    return {"observe": observe, "should_stop": lambda: seen[0] >= round_index}


@pytest.mark.parametrize("name", ["hub momentum", "hub adam", "half of the clients", "overlap"])
@pytest.mark.parametrize("stop", [3, 4])
def test_interrupted_and_resumed_is_the_uninterrupted_run_bit_for_bit(name, stop, tmp_path):
    config = config_of(**MEMBERS[name])
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "parts", **stopping_at(stop)).status == "interrupted"
    assert (("silo1.memory.safetensors") in models(tmp_path / "parts")) == (name != "half of the clients")
    assert resume(tmp_path / "parts", []).status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("stop", [2, 6])
def test_a_slow_silo_is_resumed_within_its_period(stop, tmp_path):
    config = check_config(SLOW)
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "parts", **stopping_at(stop)).status == "interrupted"
    assert resume(tmp_path / "parts", []).status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_command_resumes_what_a_hub_remembers(tmp_path):
    words = [f"--set={key}" for key in ("data.source=diabetes", "model.block=linear", "train.hub_optimizer=momentum")]
    words += [f"--set={key}" for key in ("train.batch_size=24", "evaluate.every=2", "train.hub_step_size=0.3")]
    words.append("--set=train.step_size=0.05")
    for arguments in (
        ["run", *words, "--set=train.rounds=6", "--out", str(tmp_path / "whole")],
        ["run", *words, "--set=train.rounds=4", "--out", str(tmp_path / "parts")],
        ["run", "--resume", str(tmp_path / "parts"), "--set=train.rounds=6"],
    ):
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0, shown.output
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_whose_memory_is_lost_is_not_resumed(tmp_path):
    run(config_of(**MEMBERS["hub momentum"]), tmp_path / "run", **stopping_at(4))
    (lost,) = (tmp_path / "run" / "model").glob("silo1.memory.safetensors")
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=r"silo1\.memory\.safetensors is missing: the run cannot be resumed"):
        resume(tmp_path / "run", [])


@pytest.mark.parametrize("name", MEMBERS)
def test_a_batch_of_runs_equals_its_runs(name):
    plans = [plan(config_of(seed, 0.02 * seed, step_size=0.02 + 0.03 * seed, **MEMBERS[name])) for seed in (0, 1)]
    together = simulate(*plans, most_rounds=4)
    assert together.engine == "clients"
    found = together.part(together.advance(together.advance(together.init(), 0, 5), 5, 2))
    for planned, state in zip(plans, found, strict=True):
        simulation = simulate(planned)
        expected = simulation.advance(simulation.init(), 0, 7)
        assert jax.tree.structure(state) == jax.tree.structure(expected)
        for one, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, leaf, rtol=0, atol=1e-10)


@pytest.mark.parametrize("keys", [MEMBERS["hub momentum"], {"engine": "flat"}], ids=["hub momentum", "flat"])
def test_a_sweep_gives_what_its_runs_give(keys, tmp_path):
    tasks = [RunTask(f"{seed}", plan(config_of(seed, **keys)).config, tmp_path / f"{seed}") for seed in (0, 1)]
    histories = run_all(tasks)
    for (_, config, folder), history in zip(tasks, histories, strict=True):
        alone = run(config, tmp_path / "alone" / folder.name).history
        assert [record.round for record in history] == [record.round for record in alone]
        assert history[-1].train_loss == pytest.approx(alone[-1].train_loss, rel=1e-10)
        assert models(folder).keys() == models(tmp_path / "alone" / folder.name).keys()


@pytest.mark.parametrize("engine", ["clients", "grouped", "flat"])
def test_the_engine_of_the_configuration_runs(engine):
    assert simulate(plan(config_of(engine=engine))).engine == engine


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train.engine=grouped", "model.block=mlp"], "engine = 'grouped': it runs linear blocks only; use 'clients'"),
        (["train.engine=flat", "data.keep=host"], "engine = 'flat': it needs all features on one device (data.keep"),
        (
            ["train.engine=flat", "data.source=digits"],
            "engine = 'flat': it runs blocks of one output, and there are",
        ),
        (
            ["train.engine=grouped", "train.participation=0.5"],
            "it runs Algorithm 1 as it is, and participation",
        ),
        (["train.engine=fast"], "train.engine = 'fast': must be 'auto', 'clients', 'grouped', 'flat' or 'full'"),
        (["train.variant=nowhere:at_all"], "train.variant = 'nowhere:at_all': there is no nowhere.py in"),
        (["train.variant=math:pi"], "train.variant = 'math:pi': its type is float, not tdcd.Variant"),
        (["train.variant=math"], "train.variant = 'math': must be 'package.module:name'"),
        (["train.hub_step_size=0.0"], "train.hub_step_size = 0.0: must be greater than 0"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    defaults = ["data.source=diabetes", "model.block=linear", "train.rounds=1", "train.step_size=0.05"]
    shown = CliRunner().invoke(app, ["run", *(f"--set={key}" for key in [*defaults, *words]), "--out", "run"])
    assert shown.exit_code == 2, shown.output
    assert text in " ".join(shown.output.split()), shown.output
    assert not (tmp_path / "run").exists()


def test_a_run_from_python_is_not_resumed_as_another_member(tmp_path):
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=2)
    settings = Settings(batch_size=24, local_steps=2, step_size=0.05)
    parts = (federation, Linear(), Objective(), settings)
    variant = Variant(hub_update=HubOptimizer(direction("momentum"), 0.5))
    train(*parts, rounds=2, evaluate_every=1, out=tmp_path / "run", variant=variant)
    for other in (Variant(), replace(variant, hub_update=HubOptimizer(direction("momentum"), 0.2))):
        with pytest.raises(ConfigError, match=r"train\.variant = .*: the run has "):
            train(*parts, rounds=4, evaluate_every=1, out=tmp_path / "run", resume=True, variant=other)
    resumed = train(*parts, rounds=4, evaluate_every=1, out=tmp_path / "run", resume=True, variant=variant)
    whole = train(*parts, rounds=4, evaluate_every=1, variant=variant)
    assert [json.loads(r.to_json())["train_loss"] for r in resumed.history] == [r.train_loss for r in whole.history]


def test_optimisers_that_differ_only_in_a_closure_are_distinguished(tmp_path):
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=2)
    parts = (federation, Linear(), Objective(), Settings(batch_size=24, local_steps=2, step_size=0.05))

    def go(rounds, decay, **options):
        falling = optax.exponential_decay(1.0, 10, decay)
        variant = Variant(
            update=ClientOptimizer(optax.chain(optax.trace(0.5), optax.add_decayed_weights(0.1)), falling)
        )
        return train(*parts, rounds=rounds, evaluate_every=1, out=tmp_path / "run", variant=variant, **options)

    go(2, 0.9)
    with pytest.raises(
        ConfigError, match=r"train\.variant = .*decay_rate=0\.5.*: the run has .*decay_rate=0\.9.*; give that, or"
    ):
        go(4, 0.5, resume=True)
    assert go(4, 0.9, resume=True).status == "finished"


class Opaque:
    """An update whose state Python cannot show."""

    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def start(self, block, iteration):
        return ()

    def step(self, block, gradient, state, step_size):
        return jax.tree.map(lambda leaf, slope: leaf - self.factor * step_size * slope, block, gradient), state


def test_a_variant_that_cannot_be_described_is_not_resumed(tmp_path):
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=2)
    parts = (federation, Linear(), Objective(), Settings(batch_size=24, local_steps=2, step_size=0.05))
    variant = Variant(update=Opaque(0.5))
    train(*parts, rounds=2, evaluate_every=1, out=tmp_path / "run", variant=variant)
    with pytest.raises(
        ConfigError,
        match=r"train\.variant: a run folder cannot distinguish one .*Opaque from another, .* dataclass",
    ):
        train(*parts, rounds=4, evaluate_every=1, out=tmp_path / "run", resume=True, variant=variant)


def test_a_variant_of_ones_own_and_a_key_that_makes_one_are_refused_together():
    config = check_config({"train": {"variant": "mine:variant", "optimizer": "adam"}})
    with pytest.raises(ConfigError, match=r"train.optimizer = 'adam': train.variant = 'mine:variant' takes its place"):
        variant_of(config)


@pytest.mark.parametrize(
    ("parts", "keys", "words"),
    [
        ("LabelsAt(2)", {}, r"has labels at silo number 2, counted from 0; there are 2 silos"),
        ("LabelsAt(-1)", {}, r"has labels at silo number -1, counted from 0; there are 2 silos"),
        ("LabelsAt(1), timing=Overlap(1)", {}, r"timing = Overlap\(rounds=1.* slopes are of this round's blocks"),
        ("LabelsAt(1), exchange=Quantised(8)", {}, r"exchange = Quantised\(bits=8\).* slopes have no short form"),
        ("LabelsAt(1), client_exchange=Quantised(4)", {}, r"client_exchange = Quantised\(bits=4\).* no short form"),
        ("LabelsAt(1)", {"stratify": True}, r"evaluate.stratify = true: does not go with .*LabelsAt\(silo=1\)"),
    ],
)
def test_a_variant_with_labels_at_one_silo_follows_the_rules_of_the_key(parts, keys, words, tmp_path, monkeypatch):
    config = own_variant(tmp_path, monkeypatch, f"knowledge={parts}", {"stratify": False} | keys)
    with pytest.raises(ConfigError, match=words):
        variant_of(config)


def test_the_file_may_name_the_silo_whose_labels_a_variant_has_and_no_other(tmp_path, monkeypatch):
    """The file that `tdcd up` writes for its parties names it."""
    config = own_variant(tmp_path, monkeypatch, "knowledge=LabelsAt(1)", {})
    named = [config.federation.model_copy(update={"labels": silo}) for silo in ("silo2", "silo1")]
    assert variant_of(config.model_copy(update={"federation": named[0]})) == variant_of(config)
    with pytest.raises(ConfigError, match=r"federation.labels = 'silo1': train.variant = .* takes its place"):
        variant_of(config.model_copy(update={"federation": named[1]}))


def test_only_the_silo_with_labels_of_a_variant_could_train_alone(tmp_path, monkeypatch):
    config = own_variant(tmp_path, monkeypatch, "knowledge=LabelsAt(1)", {})
    assert labelled_silos(plan(config)) == ["silo2"]


def own_variant(folder, monkeypatch, parts, evaluate):
    """A configuration whose variant is in a module of its own."""
    imports = (
        "import tdcd\nfrom tdcd.core.family.labels import LabelsAt\nfrom tdcd.core.codecs.quantised import Quantised\n"
    )
    imports += "from tdcd.core.family.overlap import Overlap\n"
    (folder / "labels_variant.py").write_text(f"{imports}VARIANT = tdcd.Variant({parts})\n")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "labels_variant", raising=False)
    train_keys = {**BASE["train"], "variant": "labels_variant:VARIANT"}
    return check_config({**BASE, "train": train_keys, "evaluate": evaluate})
