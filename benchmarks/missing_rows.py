"""Samples that some silos lack: one model on all of them, next to what there is without ``data.samples = "all"``.

``python -m benchmarks.missing_rows [--parts partner] [--tables credit] [--overlaps 0.05] [--seeds 5] [--block mlp]
[--standin constant] [--file figures.json]``

partner
    The label silo has every row, its partner 5, 20 or 50 % of them. Test figures on the rows that both have, next to a
    model of the common rows only; and on the others, next to a model of the label silo alone.
three
    Three silos with labels lack half of the rows each, at random. Test figures on the rows that all have, and on those
    that at least one has, next to intersecting first; and next to LASER-VFL's rule, the mean over the silos that are
    there in place of the sum with stand-ins.
cost
    The processor time of a round on a million samples of which the partner knows 30 %, over that of a federation with
    as many rows where everything is present; and of one with as many samples.

A fifth of the rows is the test; of the rest, 15 % are held out for early stopping. Tables are read from TDCD_DATA.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from benchmarks.timing import alternate
from tdcd import Federation, Linear, Mlp, Model, Objective, Settings, Silo, Simulation
from tdcd.blocks.absent import StandInKind
from tdcd.blocks.base import Block
from tdcd.config.resolve import Plan, plan
from tdcd.core.family.labels import LabelsAt
from tdcd.core.objective import Tree
from tdcd.core.variant import Variant
from tdcd.federation.missing_rows import presence_of, test_presence_of, with_stand_ins
from tdcd.federation.silos import Terms
from tdcd.prediction.scores import StandIns, combine, no_scores
from tdcd.tables.from_frames import assemble_frames, frames_config, silo_sections
from tdcd.tables.reader import read_rows
from tdcd.tables.source import Frame, arrow_of
from tdcd.training.train import train_plan

CLIENTS, HOLDOUT, TEST = 2, 0.15, 0.2
LABEL = "label"
CENSUS = ("median_income", "households", "population")
PLACE = ("longitude", "latitude", "ocean_proximity")
CALLS = ("contact", "day", "month", "campaign", "pdays", "previous", "poutcome")
MONEY = ("balance", "default", "housing", "loan")
PERSON = ("age", "sex", "race", "native-country")
FAMILY = ("marital-status", "relationship")
WORK = ("workclass", "education", "education-num", "occupation", "hours-per-week", "capital-gain", "capital-loss")
Figures = dict[str, float]


class Job(NamedTuple):
    """A table with its labels, and the columns of each silo; the first has the labels."""

    rows: pd.DataFrame
    labels: NDArray[Any]
    silos: dict[str, list[str]]


def _credit(folder: Path) -> tuple[pd.DataFrame, NDArray[Any]]:
    guest, host = (pd.read_csv(folder / "credit" / f"{side}.csv").set_index("id") for side in ("guest", "host"))
    joined = guest.join(host, rsuffix="_host", how="inner").reset_index(drop=True)
    return joined, joined.pop("y").to_numpy()


def _credit_of_two(folder: Path) -> Job:
    rows, labels = _credit(folder)
    own = [column for column in rows if not column.endswith("_host")]
    return Job(rows, labels, {"guest": own, "host": [column for column in rows if column not in own]})


def _credit_of_three(folder: Path) -> Job:
    rows, labels = _credit(folder)
    host = [column for column in rows if column.endswith("_host")]
    own = [column for column in rows if column not in host]
    return Job(rows, labels, {"amounts": own, "person": host[:5], "repayment": host[5:]})


def _bank(folder: Path, silos: dict[str, list[str]]) -> Job:
    rows = pd.read_csv(folder / "tables" / "bank_full.csv.gz").drop(columns=["id", "duration"])
    labels = (rows.pop("y") == "yes").to_numpy().astype(int)
    named = {column for columns in silos.values() for column in columns}
    return Job(rows, labels, silos | {"customer": [column for column in rows if column not in named]})


def _bank_of_two(folder: Path) -> Job:
    return _bank(folder, {"calls": [*CALLS]})


def _bank_of_three(folder: Path) -> Job:
    return _bank(folder, {"calls": [*CALLS], "money": [*MONEY]})


def _california(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "california_housing.csv.gz").drop(columns=["id"], errors="ignore")
    labels = np.log(rows.pop("median_house_value").to_numpy())
    return Job(rows, labels, {"census": [*CENSUS], "map": [column for column in rows if column not in CENSUS]})


def _adult(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "adult.csv.gz")
    labels = (rows["income"].str.strip() == ">50K").to_numpy().astype(int)
    silos = {"work": [*WORK], "person": [*PERSON], "family": [*FAMILY]}
    return Job(rows[[*WORK, *PERSON, *FAMILY]], labels, silos)


def _california_of_three(folder: Path) -> Job:
    """Whether a district is dearer than most."""
    rows, prices, silos = _california(folder)
    building = [column for column in silos["map"] if column not in PLACE]
    dearer = (prices > np.median(prices)).astype(int)
    return Job(rows, dearer, {"census": silos["census"], "place": [*PLACE], "building": building})


TWO: Mapping[str, Callable[[Path], Job]] = {"credit": _credit_of_two, "bank": _bank_of_two, "california": _california}
THREE: Mapping[str, Callable[[Path], Job]] = {
    "credit": _credit_of_three,
    "bank": _bank_of_three,
    "california": _california_of_three,
    "adult": _adult,
}


def figures_of(job: Job, scores: NDArray[Any], ids: NDArray[np.int64]) -> Figures:
    """R2 of amounts; AUC of classes, and accuracy."""
    labels = job.labels[ids]
    if job.labels.dtype.kind == "f":
        return {"R2": float(r2_score(labels, scores))}
    return {
        "AUC": float(roc_auc_score(labels, scores)),
        "accuracy": float(accuracy_score(labels, scores > 0)),
    }


def frames_of(job: Job, present: NDArray[np.bool_], ids: NDArray[np.int64], *, labelled: Sequence[str]) -> Any:
    """The silos' tables about these ids: their own rows, with labels where they have them."""
    frames = {}
    for (silo, columns), has in zip(job.silos.items(), present, strict=True):
        known = ids[has[ids]]
        # As in a file: a whole number is its id, and names are texts.
        columns_of = {"id": pa.array(map(str, known.tolist()))}
        columns_of |= {column: pa.array(job.rows[column].iloc[known], from_pandas=True) for column in columns}
        if silo in labelled:
            columns_of[LABEL] = pa.array(job.labels[known])
        frames[silo] = arrow_of(columns_of, silo)
    return frames


def planned(frames: Mapping[str, pa.Table], model: Mapping[str, Any], rounds: int, seed: int, **data: Any) -> Plan:
    """A training with the defaults and early stopping."""
    labelled = [silo for silo, frame in frames.items() if LABEL in frame.column_names]
    owner = labelled[0] if len(labelled) < len(frames) else None
    keys = {
        "seed": seed,
        "data": {**data, "seed": seed},
        "federation": {} if owner is None else {"labels": owner},
        "model": model,
        "train": {"rounds": rounds},
        "evaluate": {"every": 5, "holdout": HOLDOUT, "patience": 10, "keep": "best"},
    }
    config = frames_config({"silos": silo_sections(frames, "id", LABEL, None, CLIENTS, owner), **keys})
    return plan(config, assemble_frames(config, frames, bias=config.bias_silo))


def trained(*arguments: Any, **data: Any) -> Model:
    """The model of a training."""
    return train_plan(planned(*arguments, **data)).model


def scores_of(model: Model, frames: Mapping[str, pa.Table]) -> dict[str, float]:
    """The first score by id, in the labels' own unit; of a model without stand-ins, means take absent silos' place."""
    rows = {
        silo: read_rows(Frame(frame, silo), model.part(silo).columns)
        for silo, frame in frames.items()
        if silo in model.silos and len(frame)
    }
    parts = model.all_scores(rows) | {silo: no_scores(model) for silo in model.silos if silo not in rows}
    found = combine(parts, allow_missing=True, stand_ins=model.stand_ins, head=model.head)
    amounts = found.scores[:, 0] * model.label_encoding.scale + model.label_encoding.mean
    return dict(zip(found.ids, amounts.tolist(), strict=True))


def partner(
    job: Job, overlap: float, model: Mapping[str, Any], standin: str, rounds: int, seed: int
) -> dict[str, Figures]:
    """One seed of a partner that knows so many of the rows."""
    rng, count = np.random.default_rng(seed), len(job.labels)
    test, train = np.split(rng.permutation(count), [int(TEST * count)])
    present = np.ones((2, count), bool)
    for ids in (test, train):
        # So many in every seed, so that seeds share compiled programs.
        present[1, rng.permutation(ids)[int(overlap * len(ids)) :]] = False
    both, owner = present.all(axis=0), next(iter(job.silos))
    frames = frames_of(job, present, train, labelled=[owner])
    common = frames_of(job, present, train[both[train]], labelled=[owner])
    models = {
        "all rows": trained(frames, model, rounds, seed, samples="all", standin=standin),
        "common rows": trained(common, model, rounds, seed),
        "alone": trained({owner: frames[owner]}, model, rounds, seed),
    }
    found = {}
    for kind, ids in (("both", test[both[test]]), ("others", test[~both[test]])):
        new = frames_of(job, present, ids, labelled=())
        for name, one in models.items():
            scores = scores_of(one, new)
            found[f"{kind}, {name}"] = figures_of(job, np.array([scores[str(i)] for i in ids.tolist()]), ids)
    return found


def three(job: Job, model: Mapping[str, Any], standin: str, rounds: int, seed: int) -> dict[str, Figures]:
    """One seed of three silos with labels that each lack half of the rows."""
    rng, count = np.random.default_rng(seed), len(job.labels)
    test, train = np.split(rng.permutation(count), [int(TEST * count)])
    present = np.zeros((len(job.silos), count), bool)
    for ids in (test, train):
        # As many rows of each pattern, in every seed.
        patterns = rng.permutation(len(ids)) % 2 ** len(present)
        present[:, ids] = patterns >> np.arange(len(present))[:, None] & 1
    test, train = (ids[present[:, ids].any(axis=0)] for ids in (test, train))
    everywhere = present.all(axis=0)
    frames = frames_of(job, present, train, labelled=[*job.silos])
    common = frames_of(job, present, train[everywhere[train]], labelled=[*job.silos])
    models = {
        "all rows": trained(frames, model, rounds, seed, samples="all", standin=standin),
        "common rows": trained(common, model, rounds, seed),
    }
    laser = planned(frames, model, rounds, seed, samples="all", standin="none")
    found = {}
    for kind, ids in (("all three", test[everywhere[test]]), ("at least one", test)):
        new = frames_of(job, present, ids, labelled=())
        ways = {name: scores_of(one, new) for name, one in models.items()}
        for name, scores in ways.items():
            found[f"{kind}, {name}"] = figures_of(job, np.array([scores[str(i)] for i in ids.tolist()]), ids)
    summed = mean_model(laser)
    for kind, ids in (("all three", test[everywhere[test]]), ("at least one", test)):
        scores = scores_of(summed, frames_of(job, present, ids, labelled=()))
        means = np.array([scores[str(i)] for i in ids.tolist()]) / present[:, ids].sum(axis=0)
        found[f"{kind}, mean over those present"] = figures_of(job, means, ids)
    return found


class Mean(NamedTuple):
    """A block whose phi is divided by the number of silos that have the row: its last feature is one over that."""

    main: Block

    def init(self, key: Any, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The block's own parameters."""
        return self.main.init(key, (feature_shape[0] - 1,), num_outputs)

    def phi(self, block: Tree, features: Any) -> Any:
        """The block's own phi times the last feature."""
        return features[:, -1:] * self.main.phi(block, features[:, :-1])


def mean_model(given: Plan) -> Model:
    """The model of this training by LASER-VFL's rule; its scores are sums, to be divided by the silos that are there.

    Its sampling of subsets is not here: as in our runs, a sample trains with the silos that have it.
    """
    federation = given.federation
    train, test = presence_of(federation), test_presence_of(federation)
    silos = [
        replace(
            silo,
            features=_with_share(silo.features, train, index),
            test_features=_with_share(silo.test_features, test, index),
            columns=(*silo.columns, "share"),
        )
        for index, silo in enumerate(federation.silos)
    ]
    blocks = tuple(Mean(block) for block in given.blocks)
    result = train_plan(given._replace(federation=replace(federation, silos=tuple(silos)), blocks=blocks))
    return Model.of(
        federation,
        given.blocks,
        [result.blocks[silo.name] for silo in federation.silos],
        given.objective,
        stand_ins=StandIns(knows_absence=True),
    )


def _with_share(features: Any, present: NDArray[np.bool_], index: int) -> Any:
    """Features, and one over the number of silos that have each row; 0 where this one lacks it."""
    share = present[index] / np.maximum(present.sum(axis=0), 1)
    return np.concatenate([features, share[:, None].astype(features.dtype)], axis=1)


def cost(samples: int, overlap: float, model: Mapping[str, Any]) -> Figures:
    """The time of a round with absent rows, with stand-ins and without, over that of as many rows without.

    And over that of as many samples without, which has more rows: what is left of it is what a sample costs.
    """
    rng, columns = np.random.default_rng(0), 20
    block: Block = Linear() if model["block"] == "linear" else Mlp()

    def simulation(count: int, share: float, batch: int, standin: StandInKind) -> Simulation:
        labels, silos = rng.standard_normal(count, np.float32), []
        for name, has in (("a", np.ones(count, bool)), ("b", rng.random(count) < share)):
            rows = tuple(np.array_split(rng.permutation(np.flatnonzero(has)), 4))
            silos.append(Silo(name, rng.standard_normal((count, columns), np.float32), rows))
        given = Federation(tuple(silos), labels, terms=Terms("a", samples="all", standin=standin))
        federation, blocks = with_stand_ins(given, [block] * 2)
        variant = Variant(knowledge=LabelsAt(0))
        settings = Settings(batch_size=batch, local_steps=10, step_size=0.05)
        return Simulation(federation, blocks, Objective("squared"), settings, variant=variant)

    batch, rounds, rows = 4096, 10, (1 + overlap) / 2

    def advancing(made: Simulation) -> Callable[[], None]:
        state = made.init()
        return lambda: jax.block_until_ready(made.advance(state, 0, rounds))

    with_stand_in, without, complete, full = alternate(
        [
            advancing(simulation(samples, overlap, batch, "function")),
            advancing(simulation(samples, overlap, batch, "none")),
            advancing(simulation(int(samples * rows), 1.0, int(batch * rows), "none")),
            advancing(simulation(samples, 1.0, batch, "none")),
        ],
        repetitions=9,
        clock=time.process_time,
    )
    return {
        "ms per round with stand-in": 1e3 * with_stand_in / rounds,
        "ms without": 1e3 * without / rounds,
        "ms with as many rows, all present": 1e3 * complete / rounds,
        "ms with as many samples, all present": 1e3 * full / rounds,
        "ratio with stand-in": with_stand_in / complete,
        "ratio without": without / complete,
        "ratio with as many samples": full / complete,
    }


Seeds = dict[str, dict[str, Figures]]
"""By seed, what is compared, and its figures."""


def _seeds(file: Path | None, where: str, count: int, run: Callable[[int], dict[str, Figures]]) -> Seeds:
    """The figures of so many seeds, those that the file has already from it; each is written as it is there."""
    stored = json.loads(file.read_text()) if file is not None and file.exists() else {}
    found: Seeds = stored.setdefault(where, {})
    for seed in map(str, range(count)):
        if seed not in found:
            began = time.process_time()
            found[seed] = run(int(seed))
            print(f"  {where}: seed {seed}, {time.process_time() - began:.0f} s of processor time", flush=True)
            if file is not None:
                file.write_text(json.dumps(stored, indent=1) + "\n")
    return {seed: found[seed] for seed in map(str, range(count))}


def _print_means(where: str, seeds: Seeds) -> None:
    """Means over the seeds, and the mean of the difference to all rows with its standard error."""
    runs = [*seeds.values()]
    for name, first in runs[0].items():
        ours, words = f"{name.split(', ')[0]}, all rows", []
        for key in first:
            values = np.array([run[name][key] for run in runs])
            gains = np.array([run[ours][key] for run in runs]) - values
            error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
            gain = "" if name == ours else f", all rows {gains.mean():+.4f} ({error:.4f})"
            words.append(f"{key} {values.mean():.4f}{gain}")
        print(f"  {where}: {name:40s} {'   '.join(words)}", flush=True)


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Print the figures of every table: means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["partner", "three", "cost"])
    parser.add_argument("--tables", nargs="+", default=[*dict.fromkeys([*TWO, *THREE])])
    parser.add_argument("--overlaps", type=float, nargs="+", default=[0.05, 0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--block", default="mlp")
    parser.add_argument("--encoding", default="piecewise")
    parser.add_argument("--standin", default="function")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument(
        "--file", type=Path, help="JSON: figures that it has are not measured again, new ones are added"
    )
    given, figures = parser.parse_args(arguments), dict[str, Any]()
    model = {"block": given.block, "encoding": given.encoding}
    folder = Path(os.environ.get("TDCD_DATA", ""))
    settings = (model, given.standin, given.rounds)
    jobs: list[tuple[str, Callable[[int], dict[str, Figures]]]] = []
    for name in given.tables:
        if "partner" in given.parts and name in TWO:
            for overlap in given.overlaps:
                jobs.append(
                    (
                        f"{name}, {overlap:.0%}",
                        lambda seed, n=name, o=overlap: partner(TWO[n](folder), o, *settings, seed),
                    )
                )
        if "three" in given.parts and name in THREE:
            jobs.append((f"{name}, three silos", lambda seed, n=name: three(THREE[n](folder), *settings, seed)))
    for where, run in jobs:
        with warnings.catch_warnings():
            # Whether it converged is not the question here.
            warnings.simplefilter("ignore")
            try:
                figures[where] = _seeds(given.file, where, given.seeds, run)
            except FileNotFoundError:
                print(f"  {where}: not in TDCD_DATA")
                continue
        _print_means(where, figures[where])
    if "cost" in given.parts:
        figures["cost"] = cost(1_000_000, 0.3, model)
        print("  cost: " + ", ".join(f"{key} {value:.3g}" for key, value in figures["cost"].items()), flush=True)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
