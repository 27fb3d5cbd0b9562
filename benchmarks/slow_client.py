"""``python -m benchmarks.slow_client PHI_S STEPS_S CLIENT-OPTIONS...``: a client that computes as slowly as it is told.

It is the client of ``tdcd client``, except that the phi of a round takes ``PHI_S`` seconds and a round's local steps
``STEPS_S``, computing included: it sleeps for the rest, so that many such clients share a few cores and still keep
their times. What takes longer the first time, compiling, is done before the first round.
"""

import sys
import time
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from tdcd.blocks.start import start_block
from tdcd.cli import main
from tdcd.runtime.compute.client_compute import ClientCompute
from tdcd.runtime.machine import client

PHI_S, STEPS_S = map(float, sys.argv[1:3])


class SlowCompute(ClientCompute):
    """What a client computes, at a given pace."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        given = signature(ClientCompute).bind(*arguments).arguments
        settings, outputs, shape = given["settings"], given["num_outputs"], given["features"].shape[1:]
        start, rows = start_block(given["block"], settings, given["silo"], shape, outputs, ""), self.rows(0)
        super().steps(start, rows, np.zeros((len(rows.places), outputs), settings.dtype))

    def phi_sent(self, *given: Any) -> Any:
        """As slow as phi is to be."""
        return lasting(PHI_S, super().phi_sent, *given)

    def steps(self, *given: Any) -> Any:
        """As slow as local steps are to be."""
        return lasting(STEPS_S, super().steps, *given)


def lasting(seconds: float, call: Callable[..., Any], *given: Any) -> Any:
    """The result of a call, ``seconds`` after it began."""
    until = time.monotonic() + seconds
    result = call(*given)
    time.sleep(max(0.0, until - time.monotonic()))
    return result


if __name__ == "__main__":
    client.ClientCompute = SlowCompute  # type: ignore[misc]
    sys.argv = ["tdcd", "client", *sys.argv[3:]]
    main()
