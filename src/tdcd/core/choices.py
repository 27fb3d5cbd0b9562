"""The words that a configuration chooses from, apart from the code that follows them: reading one needs no JAX."""

from typing import Literal

Algorithm = Literal[
    "tdcd", "sgd", "distributed-sgd", "fedbcd", "fedavg", "hierarchical-sgd", "local-sgd", "tdcd-reused"
]
EngineName = Literal["auto", "clients", "grouped", "flat", "full"]
Gradient = Literal["unbiased", "mean"]
Keep = Literal["auto", "device", "host"]
KeepModel = Literal["last", "best"]
Preset = Literal["lan", "wan", "mobile"]
Precision = Literal["float32", "tf32", "bfloat16"]
StandInKind = Literal["function", "constant", "none"]

PYTHON = "python"
"""The ``data.source`` of a run whose federation was handed over in Python."""
MASK_RANGE = 256.0
"""The largest magnitude that numbers in fixed point have room for, unless a file says otherwise."""
NOISE_DELTA = 1e-5
"""The probability for which noise on phi makes no promise, unless a file says otherwise."""
