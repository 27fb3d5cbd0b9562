"""tdcd: train one model over data that is split by columns between organisations and by rows inside each.

>>> from tdcd import Federation, Linear, Objective, Settings, load, standardize, train
>>> rows, held_out = standardize(*load("breast_cancer").split(0.2, seed=0))
>>> federation = Federation.cut(rows, held_out, silos=3, clients=[4, 2, 3], bias=True)
>>> settings = Settings(local_steps=5, batch_size=64, step_size=0.1)
>>> result = train(federation, Linear(), Objective("logistic", l2=1e-3), settings, rounds=20)
>>> result.history[-1].metrics["test"]["auc"] > 0.98
True
"""

from tdcd.blocks import Block, Cnn, Linear, Mlp
from tdcd.data import Table, load, standardize
from tdcd.federation import Federation, Silo
from tdcd.history import Record
from tdcd.objective import Objective
from tdcd.settings import Settings
from tdcd.simulation.simulate import Simulation
from tdcd.train import Result, train

__version__ = "0.1.0"

__all__ = [
    "Block",
    "Cnn",
    "Federation",
    "Linear",
    "Mlp",
    "Objective",
    "Record",
    "Result",
    "Settings",
    "Silo",
    "Simulation",
    "Table",
    "load",
    "standardize",
    "train",
]
