"""The words that a configuration chooses from, apart from the code that follows them: reading one needs no JAX."""

from typing import Literal

Algorithm = Literal["tdcd", "sgd", "distributed-sgd", "fedbcd", "local-sgd", "tdcd-reused"]
Gradient = Literal["unbiased", "mean"]
Keep = Literal["auto", "device", "host"]
Loss = Literal["squared", "logistic", "softmax"]
Precision = Literal["float32", "tf32", "bfloat16"]

PYTHON = "python"
"""The ``data.source`` of a run whose federation was handed over in Python."""
