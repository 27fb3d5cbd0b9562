"""What ``federation.json`` says."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tdcd.federation.silos import Federation


def describe(federation: Federation, parameters: Sequence[int], engine: str) -> dict[str, Any]:
    """What ``federation.json`` says: silos, columns, clients and their rows, and the engine that simulates them.

    Args:
        parameters: of each silo's block.
    """
    return {
        "name": federation.name,
        "num_samples": federation.num_samples,
        "num_test": 0 if federation.test_labels is None else len(federation.test_labels),
        "labels": federation.labels_in_words,
        "engine": engine,
        "alignment": {silo: asdict(ids) for silo, ids in federation.alignment.items()},
        "silos": [
            {
                "name": silo.name,
                "feature_shape": list(silo.feature_shape),
                "columns": list(silo.columns),
                "clients": silo.rows_held.tolist(),
                "parameters": count,
            }
            for silo, count in zip(federation.silos, parameters, strict=True)
        ],
    }
