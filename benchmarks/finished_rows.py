# ruff: noqa
"""A prototype: one model of all rows, then each pattern of presence on its own."""

import argparse
import json
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

warnings.simplefilter("ignore")


def friedman(folder: Path) -> Any:
    from benchmarks.missing_rows import Job

    rng = np.random.default_rng(7)
    x = rng.random((16000, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4] * x[:, 5]
    y = y + 2 * rng.standard_normal(len(y))
    rows = pd.DataFrame(x, columns=[f"x{i}" for i in range(10)])
    # Columns that tell something of the partner's.
    rows["x6"] = 0.6 * x[:, 3] + 0.4 * x[:, 6]
    return Job(
        rows, (y - y.mean()) / y.std(), {"a": ["x0", "x1", "x4", "x6", "x7"], "b": ["x2", "x3", "x5", "x8", "x9"]}
    )


def made(folder: Path) -> Any:
    from sklearn.datasets import make_classification

    from benchmarks.missing_rows import Job

    x, y = make_classification(
        20000, 20, n_informative=12, n_redundant=4, n_clusters_per_class=4, flip_y=0.1, class_sep=0.7, random_state=3
    )
    rows = pd.DataFrame(x, columns=[f"x{i}" for i in range(20)])
    order = np.random.default_rng(0).permutation(20)
    return Job(rows, y, {"a": [f"x{i}" for i in order[:10]], "b": [f"x{i}" for i in order[10:]]})


def job_of(name: str) -> Any:
    from benchmarks.missing_rows import TWO

    return {**TWO, "friedman": friedman, "made": made}[name](Path(os.environ["TDCD_DATA"]))


def _rows(rows: Any, chosen: Any, total: int) -> Any:
    number = np.full(total, -1)
    number[chosen] = np.arange(len(chosen))
    kept = [number[own] for own in rows]
    return tuple(own[own >= 0] for own in kept)


def restricted(federation: Any, train: Any, test: Any, silos: Any = None) -> Any:
    """The federation of some samples, and some silos."""
    made = []
    for silo in federation.silos:
        if silos is not None and silo.name not in silos:
            continue
        made.append(
            replace(
                silo,
                features=np.ascontiguousarray(silo.features[train]),
                test_features=np.ascontiguousarray(silo.test_features[test]),
                rows=_rows(silo.rows, train, len(silo.features)),
                test_rows=_rows(silo.test_rows, test, len(silo.test_features)),
            )
        )
    terms = replace(federation.terms, label_silo=federation.terms.label_silo if len(made) > 1 else None)
    return replace(
        federation,
        silos=tuple(made),
        labels=federation.labels[train],
        test_labels=federation.test_labels[test],
        terms=terms,
    )


def with_former(federation: Any, blocks: Mapping[str, Any]) -> Any:
    from tdcd.blocks.start import FormerBlock
    from tdcd.core.trees import named_leaves

    return replace(
        federation,
        silos=tuple(
            replace(
                silo, former=FormerBlock("", {k: np.asarray(v) for k, v in named_leaves(blocks[silo.name]).items()})
            )
            for silo in federation.silos
        ),
    )


class OwnBest:
    """Keeps the blocks of the lowest held-out loss of each kind of rows."""

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self.kinds, self.best = kinds, {}

    def __enter__(self) -> "OwnBest":
        from tdcd.training import train

        self.original = train.measure

        def measure(simulation: Any, blocks: Any, round_index: int) -> Any:
            federation = simulation.federation
            scores = simulation.scores(blocks, [silo.test_features for silo in federation.silos], round_index)
            for kind, which in self.kinds.items():
                loss = simulation.losses(blocks, scores[which], federation.test_labels[which])[0]
                if kind not in self.best or loss < self.best[kind][0]:
                    self.best[kind] = loss, round_index, list(blocks)
            return self.original(simulation, blocks, round_index)

        train.measure = measure
        return self

    def __exit__(self, *error: Any) -> None:
        from tdcd.training import train

        train.measure = self.original


def one(name: str, overlap: float, seed: int, rounds: int, patience: int, scales: Any) -> dict[str, Any]:
    import benchmarks.missing_rows as b
    from tdcd.config.resolve import plan as _  # noqa
    from tdcd.core.variant import Variant
    from tdcd.federation.missing_rows import presence_of, test_presence_of
    from tdcd.prediction.model import Model
    from tdcd.training.train import train_plan

    warnings.simplefilter("ignore")
    model = {"block": "mlp", "encoding": "piecewise"}
    job = job_of(name)
    rng, count = np.random.default_rng(seed), len(job.labels)
    test, train = np.split(rng.permutation(count), [int(b.TEST * count)])
    present = np.ones((2, count), bool)
    for ids in (test, train):
        present[1, rng.permutation(ids)[int(overlap * len(ids)) :]] = False
    both, owner = present.all(axis=0), next(iter(job.silos))
    frames = b.frames_of(job, present, train, labelled=[owner])
    common = b.frames_of(job, present, train[both[train]], labelled=[owner])

    def planned(frames: Any, **data: Any) -> Any:
        given = b.planned(frames, model, rounds, seed, **data)
        evaluate = given.config.evaluate.model_copy(update={"patience": patience})
        return given._replace(config=given.config.model_copy(update={"evaluate": evaluate}))

    found: dict[str, Any] = {}
    tests = {"both": test[both[test]], "others": test[~both[test]]}

    def figures(label: str, one: Any, kinds: Any = ("both", "others")) -> None:
        for kind in kinds:
            ids = tests[kind]
            scores = b.scores_of(one, b.frames_of(job, present, ids, labelled=()))
            found[f"{kind}, {label}"] = b.figures_of(job, np.array([scores[str(i)] for i in ids.tolist()]), ids)

    for label, fr in (("common rows", common), ("alone", {owner: frames[owner]})):
        result = train_plan(planned(fr))
        found[f"{label} rounds"] = [result.round, result.n_iter]
        figures(label, result.model)
    shared = planned(frames, samples="all", standin="function")
    federation = shared.federation
    there, held = presence_of(federation).all(axis=0), test_presence_of(federation).all(axis=0)
    with OwnBest({"both": held, "others": ~held}) as own:
        result = train_plan(shared)
    figures("all rows", result.model)
    found["all rows rounds"] = [result.round, result.n_iter, own.best["both"][1], own.best["others"][1]]
    whole = result.model

    def of_blocks(blocks: Any) -> Any:
        names = [silo.name for silo in federation.silos]
        return Model.of(
            federation, result.simulation.blocks, blocks, result.simulation.objective, "float32", whole.stand_ins, None
        )

    for kind, (_, _, blocks) in own.best.items():
        figures("own best", of_blocks(blocks), [kind])
    names = [silo.name for silo in federation.silos]
    block_of = dict(zip(names, shared.blocks, strict=True))

    # The rest: all rows of the label silo, its partner absent.
    everything = np.arange(federation.num_samples), np.arange(len(federation.test_labels))
    # Judged by the held-out rows of all, as a model of the silo alone is.
    alone = restricted(federation, *everything, silos=[owner])
    silo = alone.silos[0]
    mark = len(federation.silos[names.index(owner)].columns) - 1
    for key in ("features", "test_features"):
        getattr(silo, key)[:, mark] = 1
    alone = replace(alone, terms=replace(alone.terms, samples="common"), silos=(replace(silo, marks=None),))
    joint = restricted(federation, np.flatnonzero(there), np.flatnonzero(held))
    joint = replace(joint, terms=replace(joint.terms, samples="common"))

    def finish(kind: str, given: Any, start: Any, scale: float) -> None:
        blocks = tuple(block_of[silo.name] for silo in given.silos)
        variant = shared.variant
        steered = variant.hub_update
        inner = replace(steered.update, step_size=steered.update.step_size * scale)
        variant = replace(variant, hub_update=replace(steered, update=inner))
        if len(blocks) == 1:
            variant = replace(variant, knowledge=Variant().knowledge)
        settings = replace(shared.settings, batch_size=min(shared.settings.batch_size, given.num_samples))
        begun = with_former(given, dict(zip(names, start, strict=True)))
        finished = train_plan(
            shared._replace(federation=begun, blocks=blocks, settings=settings, variant=variant, assembled=None)
        )
        after = [finished.blocks.get(name, old) for name, old in zip(names, start, strict=True)]
        label = f"finish {scale:g}"
        found[f"{kind}, {label} rounds"] = [finished.round, finished.n_iter]
        figures(label, of_blocks(after), [kind])

    for scale in scales:
        finish("both", joint, own.best["both"][2], scale)
        finish("others", alone, own.best["others"][2], scale)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", nargs="+", default=["credit", "bank", "california", "friedman", "made"])
    parser.add_argument("--overlaps", type=float, nargs="+", default=[0.05, 0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--patience", type=int, default=24)
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 0.3])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--file", type=Path, required=True)
    given = parser.parse_args()
    given.file.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(given.file.read_text()) if given.file.exists() else {}
    jobs = [
        (t, o, s)
        for s in range(given.seeds)
        for t in given.tables
        for o in given.overlaps
        if f"{t}, {o:.0%}, {s}" not in stored
    ]
    # The longest first.
    with ProcessPoolExecutor(given.workers) as pool:
        waiting = {pool.submit(one, *job, given.rounds, given.patience, given.scales): job for job in jobs}
        from concurrent.futures import as_completed

        for done in as_completed(waiting):
            t, o, s = waiting[done]
            stored[f"{t}, {o:.0%}, {s}"] = done.result()
            given.file.write_text(json.dumps(stored, indent=1))
            print(t, o, s, flush=True)
    table(stored)


def table(stored: Mapping[str, Any]) -> None:
    """Gains over training on common rows only, and over the label silo alone."""
    groups: dict[str, list[Any]] = {}
    for key, found in stored.items():
        groups.setdefault(key.rsplit(", ", 1)[0], []).append(found)
    for where, runs in sorted(groups.items()):
        for kind, other in (("both", "common rows"), ("others", "alone")):
            words = []
            for name in runs[0]:
                if not name.startswith(kind + ",") or name.endswith("rounds") or name == f"{kind}, {other}":
                    continue
                if name.split(", ")[1] in ("common rows", "alone") and kind == "others" and "common" in name:
                    continue
                figure = next(iter(runs[0][name]))
                gains = np.array([run[name][figure] - run[f"{kind}, {other}"][figure] for run in runs])
                error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
                words.append(f"{name.split(', ')[1]} {gains.mean():+.4f} ({error:.4f})")
            print(f"{where:18s} {kind:7s} n={len(runs)} {'; '.join(words)}")


if __name__ == "__main__":
    main()
