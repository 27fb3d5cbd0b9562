"""The ridge workload as a fused loop in C: how fast it can be with everything known at compile time."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tdcd import Federation, Settings
from tdcd.core.schedule import batch_ids


class FusedLoop:
    """Compiled with the machine's own C compiler."""

    def __init__(self, data: Federation, settings: Settings, rounds: int) -> None:
        """Draw the minibatches of ``rounds`` rounds, which is not part of the loop's time."""
        if max(silo.features.shape[1] for silo in data.silos) > 64 or settings.batch_size > 1024:
            raise ValueError("the loop in C is for at most 64 columns a silo and 1,024 samples a minibatch")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "fused.so"
            source = Path(__file__).with_name("fused.c")
            flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
            self._run = ctypes.CDLL(str(library)).run
        silos, samples = data.silos, data.num_samples
        held = [np.array([len(rows) for rows in silo.rows], np.float32) for silo in silos]
        ids = batch_ids(
            settings.seed,
            range(rounds),
            num_samples=samples,
            batch_size=settings.batch_size,
            local_steps=settings.local_steps,
        )
        self._arrays = [np.ascontiguousarray(silo.features, np.float32) for silo in silos]
        self._labels, self._ids = data.labels.astype(np.float32), np.ascontiguousarray(ids)
        self._owners = [silo.owner().astype(np.uint8) for silo in silos]
        self._weights = [(samples / (n * settings.batch_size)).astype(np.float32) for n in held]
        self._shares = [n / np.float32(samples) for n in held]
        self._widths = np.array([array.shape[1] for array in self._arrays], np.int32)
        self._sizes = rounds, settings.local_steps, settings.batch_size, len(silos), len(held[0])
        self._step_size = ctypes.c_float(settings.step_size)

    @staticmethod
    def is_possible() -> bool:
        """Whether there is a C compiler."""
        return shutil.which("cc") is not None

    def run(self) -> list[NDArray[np.float32]]:
        """The hub blocks after all rounds, from zeros."""
        hubs = [np.zeros(width, np.float32) for width in self._widths]
        self._run(
            *self._sizes,
            _address(self._widths),
            _addresses(self._arrays),
            _address(self._labels),
            _address(self._ids),
            _addresses(self._owners),
            _addresses(self._weights),
            _addresses(self._shares),
            self._step_size,
            _addresses(hubs),
        )
        return hubs


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _addresses(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
