"""Timing: several repetitions after a warm-up, taken turn by turn so that noise hits both sides alike."""

import statistics
import time
from collections.abc import Callable, Sequence


def alternate(
    actions: Sequence[Callable[[], None]], repetitions: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The median seconds of each action; the first run of each is thrown away.

    Args:
        clock: ``time.process_time`` for processor time, which other work on the machine disturbs less.
    """
    times: list[list[float]] = [[] for _ in actions]
    for repetition in range(repetitions + 1):
        for action, taken in zip(actions, times, strict=True):
            began = clock()
            action()
            if repetition:
                taken.append(clock() - began)
    return [statistics.median(taken) for taken in times]
