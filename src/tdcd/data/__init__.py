"""Data: tables of samples, and the sources they come from."""

from tdcd.data.sources import SOURCES, DataUnavailable, data_folder, load
from tdcd.data.table import Table, standardize

__all__ = ["SOURCES", "DataUnavailable", "Table", "data_folder", "load", "standardize"]
