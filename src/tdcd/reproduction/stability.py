"""The largest step sizes over Q, as curves and as a picture: what is stable, and what Theorem 1 admits."""

from pathlib import Path
from typing import Any

import numpy as np

from tdcd.report.figures import COLOURS, DASHES, Curve
from tdcd.report.pictures import STYLE
from tdcd.reproduction.results import ExperimentResult, Limit

LIMITS = "largest step size"
NAMES = {
    "stable": "stable (spectral radius of the expected round map)",
    "printed": "admitted by the printed condition",
    "proof": "admitted by the condition with N",
}
"""The three limits, by their fields of :class:`Limit`."""


def limits_of(result: ExperimentResult, silos: int) -> list[Limit]:
    """Those of one N, in the order of Q."""
    return sorted((limit for limit in result.limits if limit.silos == silos), key=lambda limit: limit.local_steps)


def limit_curves(result: ExperimentResult, silos: int) -> list[Curve]:
    """The three limits of one N over Q."""
    limits = limits_of(result, silos)
    steps = [limit.local_steps for limit in limits]
    return [Curve(label, steps, [getattr(limit, name) for limit in limits]) for name, label in NAMES.items()]


def save_limits(path: Path, result: ExperimentResult) -> None:
    """One panel for every N; what the printed condition admits and is not stable is shaded."""
    # matplotlib takes half a second to import.
    import matplotlib.style  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    sizes = [*dict.fromkeys(limit.silos for limit in result.limits)]
    with matplotlib.style.context(["default", STYLE]):
        drawing = Figure(figsize=(4.2 * len(sizes), 3.9), layout="constrained")
        panels = drawing.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axes, silos in zip(panels, sizes, strict=True):
            handles = _panel(axes, result, silos)
        panels[0].set_ylabel(LIMITS)
        drawing.legend(*handles, loc="outside upper left", ncols=2)
        drawing.savefig(path, format="png", dpi=110)


def _panel(axes: Any, result: ExperimentResult, silos: int) -> tuple[list[Any], list[str]]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    lines = []
    for index, curve in enumerate(limit_curves(result, silos)):
        style = {"color": COLOURS[index], "linestyle": (0, DASHES[index] or None)}
        lines += axes.plot(curve.x, curve.y, marker="o", **style)
    # Many points, since the two lines cross between two of those that are drawn; straight on logarithmic axes.
    limits = limits_of(result, silos)
    steps = np.geomspace(limits[0].local_steps, limits[-1].local_steps, 400)
    known = np.log([limit.local_steps for limit in limits])
    stable, printed = (
        np.exp(np.interp(np.log(steps), known, np.log([getattr(limit, name) for limit in limits])))
        for name in ("stable", "printed")
    )
    shade = axes.fill_between(steps, stable, printed, where=printed > stable, color=COLOURS[4], alpha=0.35, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="local steps Q", title=f"N = {silos}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    return [*lines, shade], [*NAMES.values(), "admitted by the printed condition, and diverges"]
