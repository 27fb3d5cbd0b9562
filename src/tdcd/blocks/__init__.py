"""Blocks: the part of the model that one silo trains on its own columns."""

from tdcd.blocks.base import Block
from tdcd.blocks.cnn import Cnn
from tdcd.blocks.ensemble import Ensemble
from tdcd.blocks.linear import Linear
from tdcd.blocks.mlp import Mlp

__all__ = ["Block", "Cnn", "Ensemble", "Linear", "Mlp"]
