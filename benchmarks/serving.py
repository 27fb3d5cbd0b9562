"""Predictions per second: a model in Python, and the same one as an ONNX file in onnxruntime.

``python -m benchmarks.serving [--rows 200000] [--threads 1]`` prints a line per model: rows per second of
``Model.predict_proba`` on frames in memory and of ``InferenceSession.run`` on the same columns, 4,096 rows at a time,
what ``tdcd predict``
takes from CSV to CSV with its start, and the median time of one row in milliseconds. It checks that they agree.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tdcd import Federation, Linear, Mlp, Model, Objective, Settings, train

TRAINED, SINGLE, AT_ONCE = 2_000, 200, 4_096
MODELS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "linear": (Linear(), {}),
    "linear, 32 bins": (Linear(), {"model": {"bins": 32}}),
    "mlp, 2 x 64": (Mlp((64, 64)), {}),
}


def frames(rows: int) -> dict[str, pd.DataFrame]:
    """Two silos with ten amounts, of which one has blanks, and two names each."""
    draw, found = np.random.default_rng(0), {}
    for silo in ("bank", "bureau"):
        found[silo] = pd.DataFrame(draw.normal(size=(rows, 10)).round(4), columns=[f"x{place}" for place in range(10)])
        found[silo].loc[draw.random(rows) < 0.1, "x0"] = np.nan
        for name in ("city", "branch"):
            found[silo][name] = draw.choice([f"{name} {place}" for place in range(20)], rows)
    return found


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of a call, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(name: str, tables: Mapping[str, pd.DataFrame], folder: Path, threads: int) -> str:
    """A line of the table."""
    import onnxruntime  # noqa: PLC0415 - of the extra dev

    block, keys = MODELS[name]
    first = {silo: frame.head(TRAINED) for silo, frame in tables.items()}
    first["bank"] = first["bank"].assign(y=(first["bank"]["x1"] + first["bureau"]["x1"] > 0).astype(int))
    federation = Federation.from_frames(first, label="y", **keys)
    settings = Settings(local_steps=5, batch_size=64, step_size=0.05)
    model: Model = train(federation, block, Objective("logistic"), settings, rounds=20, verbose=0).model
    model.to_onnx(folder / "model.onnx")
    model.save(folder / "model.tdcd")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    columns = {
        f"{silo}/{column}": frame[column].to_numpy(object if frame[column].dtype.kind != "f" else np.float64)
        for silo, frame in tables.items()
        for column in frame
    }
    one_row = {silo: frame.head(1) for silo, frame in tables.items()}
    one_cell = {column: values[:1] for column, values in columns.items()}
    outputs, rows = ["probabilities"], len(tables["bank"])

    def served() -> Any:
        parts = [
            session.run(outputs, {column: values[start : start + AT_ONCE] for column, values in columns.items()})[0]
            for start in range(0, rows, AT_ONCE)
        ]
        return np.concatenate(parts)

    np.testing.assert_allclose(served(), model.predict_proba(tables), rtol=0, atol=1e-6)
    in_python, in_runtime = (seconds(work, 5) for work in (lambda: model.predict_proba(tables), served))
    row_in_python, row_in_runtime = (
        1e3 * seconds(work, SINGLE)
        for work in (lambda: model.predict_proba(one_row), lambda: session.run(outputs, one_cell))
    )
    given = [text for silo in tables for text in ("--data", f"{silo}={folder / silo}.csv")]
    command = [sys.executable, "-m", "tdcd", "predict", folder / "model.tdcd", *given, "--force"]
    start = time.perf_counter()
    subprocess.run([*map(str, command), "--out", str(folder / "out.csv")], check=True, capture_output=True)
    whole = time.perf_counter() - start
    return (
        f"| {name} | {rows / in_python:,.0f} | {rows / in_runtime:,.0f} | {whole:.1f} s | {row_in_python:.2f} ms | "
        f"{row_in_runtime:.3f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = frames(given.rows)
    print("| model | Python, rows/s | onnxruntime, rows/s | tdcd predict, all rows | a row in Python | a row in it |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for silo, frame in tables.items():
            frame.assign(id=range(given.rows)).to_csv(folder / f"{silo}.csv", index=False)
        for name in MODELS:
            print(measure(name, tables, folder, given.threads), flush=True)


if __name__ == "__main__":
    main()
