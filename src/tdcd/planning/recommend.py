"""Which row of a plan to take, and why."""

from collections.abc import Sequence

from tdcd.planning.row import Row
from tdcd.report.units import duration, rounded_down


def recommend(rows: Sequence[Row]) -> tuple[Row, str]:
    """The row that reaches the target soonest, and the reason in a sentence.

    Args:
        rows: with Q ascending.
    """
    running = [row for row in rows if not row.failed]
    if not running:
        raise ValueError(
            f"every pilot run diverged, with step sizes from {min(min(row.diverged) for row in rows):g} up: "
            "set a smaller train.step_size, or data.standardize = true"
        )
    arrived = [row for row in running if row.rounds is not None]
    if not arrived:
        best = min(running, key=lambda row: row.lowest)
        return best, (
            f"{_named(best)} came closest, with a loss of {best.lowest:.4g}, but time was up before any pilot run got "
            "to the target: give more seconds or a higher target."
        )
    best = min(arrived, key=lambda row: row.seconds)
    parts = [f"{_named(best)} is the fastest on this network, {duration(best.seconds)} predicted"]
    parts += _below(best, arrived[0])
    parts += _above(best, [row for row in rows if row.local_steps > best.local_steps])
    unknown = [row for row in running if row.rounds is None and row.seconds < best.seconds]
    if unknown:
        listed = ", ".join(str(row.local_steps) for row in unknown)
        parts.append(f"time was up before it was known whether Q = {listed} is faster")
    return best, "; ".join(parts) + "."


def _named(row: Row) -> str:
    return f"Q = {row.local_steps} with step_size = {rounded_down(row.step_size)}"


def _below(best: Row, least: Row) -> list[str]:
    if least is best:
        return []
    times = least.seconds / best.seconds
    return [f"Q = {least.local_steps} takes {times:.2g} times as long, since it pays a round's latency more often"]


def _above(best: Row, larger: Sequence[Row]) -> list[str]:
    if not larger:
        return ["it is the largest Q tried, and a larger one might be faster still"]
    above = larger[0]
    if best.step_size in above.diverged:
        return [f"Q = {above.local_steps} diverges with that step size"]
    assert best.rounds is not None
    if above.least_rounds > best.rounds:
        return ["beyond it, staleness costs rounds instead of saving them"]
    if above.least_rounds == best.rounds:
        return ["beyond it, no more rounds are saved"]
    return ["beyond it, a round's local steps and phi cost more than the rounds saved are worth"]
