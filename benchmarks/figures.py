"""One line, and one entry in the JSON, a workload."""

from pathlib import Path


def peak_memory() -> int:
    """The most bytes this process has had resident; unlike getrusage, without its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def report(
    workload: str,
    ours: float,
    limit: float,
    theirs: float | None = None,
    unit: str = "ms",
    batched: tuple[str, float] | None = None,
) -> dict[str, float]:
    """Print and return our time, the limit's and PyTorch's, in seconds here, with their ratios.

    Args:
        theirs: of the per-client loop.
        batched: of the best way to write all clients as one batch, and which way that is.
    """
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    figures = {f"tdcd_{unit}": ours * scale, f"limit_{unit}": limit * scale, "share_of_limit": limit / ours}
    figures["peak_memory_gb"] = peak_memory() / 1e9
    words = f"{workload}: {ours * scale:.3g} {unit}; the limit is {limit * scale:.3g} {unit} ({limit / ours:.0%})"
    if theirs is not None:
        figures |= {f"torch_{unit}": theirs * scale, "ratio": theirs / ours}
        words += f"; per-client PyTorch modules {theirs * scale:.4g} {unit} ({theirs / ours:.1f} times ours)"
    if batched is not None:
        way, seconds = batched
        figures |= {f"batched_torch_{unit}": seconds * scale, "ratio_to_batched": seconds / ours}
        words += (
            f"; PyTorch with clients batched, {way}, {seconds * scale:.4g} {unit} ({seconds / ours:.1f} times ours)"
        )
    print(f"{words}; peak memory {figures['peak_memory_gb']:.2f} GB", flush=True)
    return figures
