"""The run folder: everything a run leaves behind, and all that resuming it needs.

::

    config.toml                 the resolved settings
    federation.json             silos, columns, clients and their rows; the engine that simulates them
    history.jsonl               one line per evaluated round
    model/<silo>.safetensors    each hub's block; the round is in the metadata
    model/<silo>.memory.safetensors    what else a hub remembers, if its variant has it remember anything
    preparation/<silo>.json     how the silo's columns become features; of a run from files
    labels.json                 what the labels are; of a run from files
    held-out.csv                ids, labels and predictions of the held-out samples
    alone.json                  what each silo reaches alone, if that was asked for
    subsets.json                what the model reaches with every subset of silos
    report.html
    manifest.json               versions, machine, and digests of all of this; see :mod:`tdcd.records.manifest`
    manifest.key                what the digests of data there are keyed with; for the owner's eyes only

Nothing else in the package reads or writes these files. What a hub's folder has besides is in
:mod:`tdcd.runtime.storage`; a sweep's folder of run folders is in :mod:`tdcd.records.sweep_folder`.
"""

from tdcd.records.run_folder.describe import describe
from tdcd.records.run_folder.durable import SHARED, sync_folder, write_all, write_durably
from tdcd.records.run_folder.folder import RunFolder
from tdcd.records.run_folder.toml import toml_text

__all__ = ["SHARED", "RunFolder", "describe", "sync_folder", "toml_text", "write_all", "write_durably"]
