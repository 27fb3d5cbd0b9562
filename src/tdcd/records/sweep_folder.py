"""A sweep's folder: one run folder per setting, and next to them

::

    sweep.json      the configuration, lists and all, and what each run came to
    sweep.html
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tdcd.records.files import digest_of, parse_json, read_plain, write_durably, write_json
from tdcd.records.model_file import RESTORE
from tdcd.records.run_folder import RunFolder

SWEEP = "sweep.json"


class SweepFolder:
    """One sweep on disk."""

    def __init__(self, path: Path) -> None:
        """Point to ``path``, where a sweep is or shall be."""
        self.path, self.file = path, path / SWEEP

    @property
    def is_begun(self) -> bool:
        """Whether there is a sweep."""
        return self.file.exists()

    def begun_runs(self) -> list[str]:
        """The names of the run folders that are there."""
        return sorted(path.name for path in self.path.glob("*") if RunFolder(path).is_begun)

    def write(self, keys: Mapping[str, Any], varied: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> None:
        """Say what is varied, and what each run came to so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"keys": keys, "digest": digest_of(keys, {}), "varied": [*varied], "runs": [*runs]})

    def keys(self) -> dict[str, Any]:
        """The configuration, with a list where a key is varied."""
        try:
            content = parse_json(read_plain(self.file))
            keys, digest = content["keys"], content["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.file} is damaged: {error!r}; {RESTORE}") from None
        if digest != digest_of(keys, {}):
            raise ValueError(f"{self.file} is damaged: 'keys' does not match 'digest'; {RESTORE}")
        return dict(keys)

    def write_page(self, page: str) -> Path:
        """Replace ``sweep.html``; its path."""
        path = self.path / "sweep.html"
        write_durably(path, page.encode())
        return path
