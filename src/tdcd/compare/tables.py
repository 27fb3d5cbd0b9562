"""A comparison's tables, for the page and for the terminal."""

import statistics
from collections.abc import Mapping, Sequence

from tdcd.compare.comparison import Comparison, Contender
from tdcd.compare.scikit_learn import NEEDS
from tdcd.core.words import TextTable, bytes_in_words, duration, figure, metric_title
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder

NOTHING = "–"
LOWER_IS_BETTER = ("loss", "rmse", "deviance", "mae")


def summary(comparison: Comparison) -> TextTable:
    """One row per algorithm: how good it is, and what it needs that TDCD does not."""
    names = list(figures(comparison.tdcd.run.final))
    sizes = ["step size"] if comparison.is_tuned else []
    rows = []
    for contender in comparison.contenders:
        by_name = over_seeds(contender)
        rows.append(
            [
                contender.title + _diverged(contender),
                *(_with_spread(by_name.get(name, [])) for name in names),
                *([_step_size(contender)] if comparison.is_tuned else []),
                contender.needs or NOTHING,
            ]
        )
    for model in comparison.joined:
        by_name = _by_name([titled(fit.train_loss, fit.test) for fit in model.fits])
        given = [NOTHING] if comparison.is_tuned else []
        rows.append([model.label, *(_with_spread(by_name.get(name, [])) for name in names), *given, NEEDS])
    return TextTable(["", *names, *sizes, "needs"], rows)


def costs(comparison: Comparison) -> TextTable:
    """One row per algorithm: at what price, and what it took to get as far as TDCD."""
    head = ["", "rounds", "sent", "of it raw data", "sent for evaluation", "predicted time", "time to TDCD's loss + 1%"]
    rows = []
    for contender in comparison.contenders:
        # What was sent before the first round.
        moved, last = contender.run.history[0].bytes.total, contender.run.history[-1]
        rows.append(
            [
                contender.title,
                f"{last.round:,}",
                bytes_in_words(last.bytes.total),
                bytes_in_words(moved) if moved else NOTHING,
                bytes_in_words(last.evaluation_bytes.total) if last.evaluation_bytes is not None else NOTHING,
                duration(contender.seconds(last)),
                _time_to(contender, comparison.levels),
            ]
        )
    for model in comparison.joined:
        raw = bytes_in_words(model.moved_bytes)
        rows.append([model.label, NOTHING, raw, raw, NOTHING, duration(model.seconds), NOTHING])
    return TextTable(head, rows)


def _step_size(contender: Contender) -> str:
    """The one with the lowest loss; if it is the last of those that were tried, a further one may be better."""
    tried, size = contender.tried, f"{contender.step_size:g}"
    if len(tried) < 2:
        return f"{size} (given)"
    ends = {min(tried): "smallest", max(tried): "largest"}
    return size + (f" ({ends[contender.step_size]} tried)" if contender.step_size in ends else "")


def _diverged(contender: Contender) -> str:
    if not contender.diverged:
        return ""
    return " (diverged)" if len(contender.runs) == 1 else f" ({contender.diverged} of {len(contender.runs)} diverged)"


def over_seeds(contender: Contender) -> dict[str, list[float]]:
    """What the models are judged by, one number per seed where there is one."""
    return _by_name([figures(run.final) for run in contender.runs])


def _by_name(seeds: Sequence[Mapping[str, float | None]]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for own in seeds:
        for name, value in own.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return values


def mean(values: Sequence[float]) -> float | None:
    """Over the seeds; None where there is no number."""
    return statistics.fmean(values) if values else None


def means(contender: Contender) -> dict[str, float | None]:
    """What the models are judged by, as means over the seeds."""
    return {name: mean(values) for name, values in over_seeds(contender).items()}


def _with_spread(values: Sequence[float]) -> str:
    """The mean over the seeds, and half of the range between the lowest and the highest."""
    return figure(mean(values)) + (f" ± {(max(values) - min(values)) / 2:.1g}" if len(values) > 1 else "")


def _time_to(contender: Contender, levels: Sequence[float]) -> str:
    times = [contender.seconds(record) for record in contender.reached(levels) if record is not None]
    if not times:
        return "never"
    seeds = len(levels)
    return duration(statistics.fmean(times)) + (f" ({len(times)} of {seeds} seeds)" if len(times) < seeds else "")


def figures(record: Record) -> dict[str, float | None]:
    """What a model is judged by: the training loss and the held-out metrics."""
    return titled(record.train_loss, record.metrics.get("test", {}))


def titled(train_loss: float, held_out: Mapping[str, float | None]) -> dict[str, float | None]:
    """The training loss and held-out metrics by their names in tables."""
    return {"train loss": train_loss} | {f"held-out {metric_title(k)}": value for k, value in held_out.items()}


def joined(comparison: Comparison) -> TextTable:
    """One row per model of scikit-learn: which one, what was chosen, and how long it took, next to TDCD."""
    simulated = mean([run.history[-1].seconds for run in comparison.tdcd.runs])
    rows = [["tdcd", NOTHING, NOTHING, NOTHING, duration(simulated or 0.0)]]
    for model in comparison.joined:
        settings = list(dict.fromkeys(fit.setting for fit in model.fits))
        seconds = mean([fit.seconds for fit in model.fits]) or 0.0
        rows.append(
            [model.label, model.estimator, "; ".join(settings), bytes_in_words(model.moved_bytes), duration(seconds)]
        )
    return TextTable(["", "model", "setting", "raw data in one place", "seconds on this machine"], rows)


def gain(name: str, alone: float | None, together: float | None) -> float | None:
    """How much better the federation's figure is than a silo's own; below 0 if it is worse.

    >>> gain("held-out accuracy", 0.75, 1.0), gain("train loss", 0.75, 1.0)
    (0.25, -0.25)
    """
    if alone is None or together is None:
        return None
    return alone - together if name.lower().endswith(LOWER_IS_BETTER) else together - alone


def joining(comparison: Comparison) -> TextTable:
    """One row per silo: its figures alone, and what the federation gains; the last row is the federation."""
    together = means(comparison.tdcd)
    rows = []
    for contender in comparison.silo_only:
        alone = means(contender)
        row = [f"{contender.silo} alone"]
        for name, joined in together.items():
            row += [figure(alone.get(name)), _signed(gain(name, alone.get(name), joined))]
        rows.append(row)
    head = ["", *(cell for name in together for cell in (name, "joining gains"))]
    return TextTable(
        head, [*rows, ["together", *(cell for value in together.values() for cell in (figure(value), ""))]]
    )


def _signed(value: float | None) -> str:
    if value is None:
        return figure(None)
    return ("+" if value > 0 else "−" if value < 0 else "") + figure(abs(value))


CONFIDENCE = 0.95
MARGINS = ("auc", "r²", "r2", "d²", "d2", "accuracy")
"""How the names of the metrics end in which a head's margin is reported: the first that there is."""


def interactions(comparison: Comparison) -> list[str]:
    """Sentences on interactions between silos: what the test on TDCD's run says, and what heads gain or lose."""
    recorded = RunFolder(comparison.tdcd.run.path).subsets().get("interactions", {})
    tested = [str(recorded["words"])] if "words" in recorded else []
    head = comparison.tdcd.run.config["model"].get("head", "sum")
    others = [
        contender for contender in comparison.together if contender.run.config["model"].get("head", "sum") != head
    ]
    return tested + [_margin(comparison.tdcd, other) for other in others]


def _margin(tdcd: Contender, other: Contender) -> str:
    """What another head changes of a held-out metric, with the same seeds."""
    ours, theirs = over_seeds(tdcd), over_seeds(other)
    name = next((name for end in MARGINS for name in ours if name.lower().endswith(end)), "train loss")
    if len(ours[name]) != len(tdcd.runs) or len(theirs.get(name, [])) != len(tdcd.runs):
        return f"{other.title}: some of its runs, or of those of tdcd, have no {name} to compare."
    gains = [gain(name, mine, its) or 0.0 for mine, its in zip(ours[name], theirs[name], strict=True)]
    average = statistics.fmean(gains)
    words = f"{other.title} changes the {name} by {average:+.4f}"
    if len(gains) == 1:
        return f"{words}, with one seed; --seeds 5 gives an interval."
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to import)

    half = float(stdtrit(len(gains) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(gains) / len(gains) ** 0.5
    low, high = average - half, average + half
    verdict = "it pays" if low > 0 else "it costs accuracy" if high < 0 else "that may be chance"
    return f"{words} (95 % interval {low:+.4f} to {high:+.4f}, {len(gains)} seeds): {verdict}."
