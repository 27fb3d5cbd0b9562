"""tdcd: train one model over data that is split by columns between organisations and by rows inside each.

>>> from tdcd import Federation, Linear, Objective, Settings, load, standardize, train
>>> rows, held_out = standardize(*load("breast_cancer").split(0.2, seed=0))
>>> federation = Federation.cut(rows, held_out, silos=3, clients=[4, 2, 3], bias=True)
>>> settings = Settings(local_steps=5, batch_size=64, step_size=0.1)
>>> result = train(federation, Linear(), Objective("logistic", l2=1e-3), settings, rounds=20)
>>> result.history[-1].metrics["test"]["auc"] > 0.98
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcd.blocks import Block, Cnn, Ensemble, Linear, Mlp
    from tdcd.core.codecs.noise import GaussianNoise
    from tdcd.core.codecs.quantised import Quantised, QuantisedChange
    from tdcd.core.family.dropout import SiloDropout
    from tdcd.core.family.heads import Hidden, Pairs
    from tdcd.core.family.labels import LabelsAt
    from tdcd.core.family.momentum import ClientMomentum
    from tdcd.core.family.overlap import Overlap
    from tdcd.core.knowledge import Knowledge
    from tdcd.core.losses import Huber, Loss
    from tdcd.core.objective import Objective
    from tdcd.core.settings import Settings
    from tdcd.core.variant import Variant
    from tdcd.data import Table, load, standardize
    from tdcd.estimators.two_tier import TwoTierClassifier, TwoTierRegressor
    from tdcd.federation.silos import Federation, Silo
    from tdcd.prediction.model import Model
    from tdcd.records.history import Record
    from tdcd.simulation.simulate import Simulation
    from tdcd.tables.errors import DataWarning
    from tdcd.training.train import Result, train

__version__ = "0.2.0"

__all__ = [
    "Block",
    "ClientMomentum",
    "Cnn",
    "DataWarning",
    "Ensemble",
    "Federation",
    "GaussianNoise",
    "Hidden",
    "Huber",
    "Knowledge",
    "LabelsAt",
    "Linear",
    "Loss",
    "Mlp",
    "Model",
    "Objective",
    "Overlap",
    "Pairs",
    "Quantised",
    "QuantisedChange",
    "Record",
    "Result",
    "Settings",
    "Silo",
    "SiloDropout",
    "Simulation",
    "Table",
    "TwoTierClassifier",
    "TwoTierRegressor",
    "Variant",
    "load",
    "standardize",
    "train",
]

_MODULES = {
    "tdcd.blocks": ("Block", "Cnn", "Ensemble", "Linear", "Mlp"),
    "tdcd.data": ("Table", "load", "standardize"),
    "tdcd.estimators.two_tier": ("TwoTierClassifier", "TwoTierRegressor"),
    "tdcd.federation.silos": ("Federation", "Silo"),
    "tdcd.prediction.model": ("Model",),
    "tdcd.records.history": ("Record",),
    "tdcd.core.family.heads": ("Hidden", "Pairs"),
    "tdcd.core.family.dropout": ("SiloDropout",),
    "tdcd.core.knowledge": ("Knowledge",),
    "tdcd.core.family.labels": ("LabelsAt",),
    "tdcd.core.codecs.noise": ("GaussianNoise",),
    "tdcd.core.losses": ("Huber", "Loss"),
    "tdcd.core.family.momentum": ("ClientMomentum",),
    "tdcd.core.objective": ("Objective",),
    "tdcd.core.codecs.quantised": ("Quantised", "QuantisedChange"),
    "tdcd.core.settings": ("Settings",),
    "tdcd.core.family.overlap": ("Overlap",),
    "tdcd.core.variant": ("Variant",),
    "tdcd.simulation.simulate": ("Simulation",),
    "tdcd.tables.errors": ("DataWarning",),
    "tdcd.training.train": ("Result", "train"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used: most need JAX, which takes a second to import."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
