"""What a ranking of variants says: whether overlap pays, in sentences, and the lines to write into a configuration."""

from collections.abc import Iterator, Sequence

from tdcd.config import Config
from tdcd.pages.kit.words import duration, milliseconds, rounded_down
from tdcd.planning.candidates import AS_IT_IS
from tdcd.planning.variants import WORTH, Ranked, Ranking


def advice(ranking: Ranking) -> list[str]:
    """Sentences: what each change gives by itself, and what to take."""
    return [*_on_overlap(ranking), *_on_periods(ranking), *_on_bits(ranking), _conclusion(ranking)]


def _on_overlap(ranking: Ranking) -> Iterator[str]:
    in_step = ranking.alike()
    late = [each for each in ranking.ranked if _only_late(each)]
    if in_step is None or not late:
        return
    works = [work.before + work.per_phi + work.steps for work in in_step.cost.works]
    busiest = max(range(len(works)), key=works.__getitem__)
    best = _best_late(ranking, late)
    gain = in_step.cost.seconds / best.cost.seconds
    facts = f"of the {milliseconds(in_step.cost.seconds)} that a round takes in step, {ranking.silos[busiest]} is busy "
    facts += f"for {milliseconds(works[busiest])}, and only the rest is waiting that overlap can hide"
    with_it = f"{best.candidate.in_words(ranking.silos)} would make rounds {gain:.2f} times as fast"
    yield f"Overlap {_verdict(gain, best, in_step)} here: {facts}; {with_it}{_to_the_target(best, in_step)}."


def _best_late(ranking: Ranking, late: Sequence[Ranked]) -> Ranked:
    """Which overlap to speak of: the one to take, else the soonest at the target, else the fastest rounds."""
    tried = [each for each in ranking.ranked if each.candidate.overlap and each.forecast is not None]
    if ranking.recommended in tried:
        return ranking.recommended
    arrived = [each for each in tried if each.seconds is not None]
    if arrived:
        return min(arrived, key=lambda each: each.seconds or 0.0)
    of_these = tried or late
    fastest = min(each.cost.seconds for each in of_these)
    return next(each for each in of_these if each.cost.seconds <= (1 + WORTH) * fastest)


def _verdict(gain: float, late: Ranked, in_step: Ranked) -> str:
    """By the time to the target, as far as pilot runs know it."""
    if gain <= 1 + WORTH or (late.forecast is not None and late.forecast.failed):
        return "does not pay"
    if late.seconds is None or in_step.seconds is None:
        return "may pay"
    return "pays" if in_step.seconds > (1 + WORTH) * late.seconds else "does not pay"


def _to_the_target(each: Ranked, in_step: Ranked) -> str:
    """What the pilot run says of a change; empty if there was none."""
    forecast = each.forecast
    if forecast is None:
        return ", but no pilot run tried it" if each.cost.seconds * (1 + WORTH) < in_step.cost.seconds else ""
    diverged = f"with step_size = {', '.join(map(rounded_down, forecast.diverged))} it diverges" * bool(
        forecast.diverged
    )
    if forecast.failed:
        return f", but {diverged}"
    if each.seconds is None:
        return f", but {diverged + ', and ' if diverged else ''}time was up before its pilot run got to the target"
    if each is in_step or in_step.seconds is None:
        return ""
    sooner = each.seconds < in_step.seconds
    smaller = f": {diverged}, and step_size = {rounded_down(forecast.step_size)} takes more rounds" if diverged else ""
    times = f"{duration(each.seconds)} instead of {duration(in_step.seconds)}"
    return f", {'and' if sooner else 'but'} it takes {times} to the target{smaller}"


def _only_late(each: Ranked) -> bool:
    candidate = each.candidate
    return candidate.overlap > 0 and max(candidate.periods) == 1 and candidate.phi_bits == AS_IT_IS


def _on_periods(ranking: Ranking) -> Iterator[str]:
    in_step = ranking.alike()
    for periods in dict.fromkeys(each.candidate.periods for each in ranking.ranked):
        alone = ranking.alike(periods=periods)
        if max(periods) > 1 and in_step is not None and alone is not None:
            named = ", ".join(f"{m} for {silo}" for silo, m in zip(ranking.silos, periods, strict=True) if m > 1)
            gain = in_step.cost.seconds / alone.cost.seconds
            after = _to_the_target(alone, in_step)
            yield f"A period of {named} would make rounds {gain:.2f} times as fast{after}."


def _on_bits(ranking: Ranking) -> Iterator[str]:
    in_step, few = ranking.alike(), ranking.alike(phi_bits=8)
    if in_step is not None and few is not None:
        gain, part = in_step.cost.seconds / few.cost.seconds, few.bytes_per_round / in_step.bytes_per_round
        yield f"phi_bits = 8 would send {part:.0%} of the bytes, and make rounds {gain:.2f} times as fast."


def _conclusion(ranking: Ranking) -> str:
    own, best = ranking.own, ranking.recommended
    tried = [each for each in ranking.ranked if each.forecast is not None and each is not own]
    if own.seconds is None:
        return "Time was up before it was known how long the configuration's own way takes: give more seconds."
    if best is own:
        why = "none of the ways tried gets to the target sooner" if tried else "no other way makes rounds much faster"
        return f"Keep {own.candidate.in_words(ranking.silos)}: {why}."
    assert best.seconds is not None
    times = own.seconds / best.seconds
    return (
        f"{best.candidate.in_words(ranking.silos)} gets to the target soonest, in {duration(best.seconds)} predicted: "
        f"{times:.2g} times as fast as {own.candidate.in_words(ranking.silos)}."
    )


def configuration_lines(ranking: Ranking, config: Config) -> list[str]:
    """The recommendation as TOML. Of silos that have entries, it names those that need another period."""
    candidate, step_size = ranking.recommended.candidate, ranking.step_size
    own_step = step_size == config.train.step_size
    return [
        "[train]",
        f"local_steps = {ranking.local_steps}",
        f"step_size = {step_size if own_step else rounded_down(step_size)}",
        f"overlap = {candidate.overlap}",
        "",
        "[exchange]",
        f"phi_bits = {candidate.phi_bits}",
        *(_new_periods(ranking, config) if config.silos else _counted_silos(ranking, config)),
    ]


def _new_periods(ranking: Ranking, config: Config) -> Iterator[str]:
    for silo, period in zip(config.silos, ranking.recommended.candidate.periods, strict=True):
        if period != silo.period:
            entry = f'name = "{silo.name}"  # one more line in the entry that is there'
            yield from ("", "[[silos]]", entry, f"period = {period}")


def _counted_silos(ranking: Ranking, config: Config) -> Iterator[str]:
    periods = ranking.recommended.candidate.periods
    if max(periods) > 1:
        yield from ("", "# in place of federation.silos and federation.clients")
        for name, clients, period in zip(ranking.silos, config.client_counts, periods, strict=True):
            yield from ("[[silos]]", f'name = "{name}"', f"clients = {clients}", f"period = {period}")
