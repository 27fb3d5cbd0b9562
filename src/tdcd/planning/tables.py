"""Recommendations, rankings and bounds as tables, sentences and lines of a configuration, for terminal and page."""

from collections.abc import Iterator, Sequence

from tdcd.config import Config
from tdcd.core.words import TextTable, bytes_in_words, counted, duration, figure, milliseconds, rounded_down
from tdcd.planning.automatic_run import AutomaticRun
from tdcd.planning.forecast import Forecast
from tdcd.planning.local_steps import Recommendation
from tdcd.planning.measured_bound import MeasuredBound
from tdcd.planning.scaled_steps import ScaledBound
from tdcd.planning.variants import AS_IT_IS, WORTH, Ranked, Ranking, worthwhile
from tdcd.theory import Constants, Noise
from tdcd.theory.reused import TERMS
from tdcd.theory.step_size import terms_in_words, timing_in_words


def over_q(recommendation: Recommendation) -> TextTable:
    """One row per Q: step sizes, rounds and time."""
    head = ["Q", "safe step size", "pilot's step size", "rounds", "predicted time", "rounds by Theorem 1"]
    return TextTable(head, [_row(forecast) for forecast in recommendation.forecasts])


def _row(forecast: Forecast) -> list[str]:
    safe = "–" if forecast.safe_step_size is None else rounded_down(forecast.safe_step_size)
    by_theorem = "–" if forecast.bound_rounds is None else f"{forecast.bound_rounds:.2g}"
    size = rounded_down(forecast.step_size)
    if forecast.failed:
        return [str(forecast.local_steps), safe, size, "diverges", "–", by_theorem]
    rounds, time = f"{forecast.least_rounds:,}", duration(forecast.seconds)
    if forecast.rounds is None:
        rounds, time = (f"> {rounds}", f"> {time}") if forecast.simulated else ("–", "–")
    return [str(forecast.local_steps), safe, size, rounds, time, by_theorem]


def sent(recommendation: Recommendation) -> TextTable:
    """One row per Q: bytes by kind of link until the target, and in all."""
    head = ["Q", "client to hub", "hub to client", "hub to hub", "sent in all"]
    return TextTable(head, [_sent(forecast) for forecast in recommendation.forecasts])


def _sent(forecast: Forecast) -> list[str]:
    traffic = forecast.traffic
    if forecast.failed or not forecast.least_rounds:
        return [str(forecast.local_steps), "–", "–", "–", "–"]
    counts = [traffic.client_to_hub, traffic.hub_to_client, traffic.hub_to_hub, traffic.total]
    more = "> " if forecast.rounds is None else ""
    return [str(forecast.local_steps), *(more + bytes_in_words(count) for count in counts)]


def over_networks(automatic: AutomaticRun) -> TextTable:
    """One row per network: what the automatic run takes to the target and to its end, and the fastest plain steps."""
    head = ["step_size = 'auto'", "rounds", "sent in all", "predicted time", "to its end", "fastest plain Q"]
    return TextTable(head, [_network_row(name, automatic) for name in automatic.predictions])


def _network_row(name: str, automatic: AutomaticRun) -> list[str]:
    reached, last, plain = automatic.reached, automatic.last, automatic.plain.get(name)
    more = "> " if reached is None else ""
    line = reached or last
    costs = [f"{line.round:,}", bytes_in_words(line.bytes.total), duration(automatic.seconds(name, line))]
    end = duration(automatic.seconds(name, last)) if automatic.is_over else "–"
    fastest = "–" if plain is None else f"Q = {plain.local_steps}, {duration(plain.seconds)}"
    return [name, *(more + cost for cost in costs), end, fastest]


def over_variants(ranking: Ranking) -> tuple[TextTable, int]:
    """One row per candidate that is worth a look, the slowest rounds first, and which row is recommended."""
    alone = [ranking.alike(), ranking.alike(overlap=1), ranking.alike(phi_bits=8)]
    alone += [ranking.alike(periods=each.candidate.periods) for each in ranking.ranked]
    shown = {each.candidate: each for each in (ranking.own, ranking.recommended, *alone) if each is not None}
    shown |= {each.candidate: each for each in (*worthwhile(ranking.ranked), *_tried(ranking))}
    rows = sorted(shown.values(), key=lambda each: -each.cost.seconds)
    head = ["", "a round", "bytes per round", "rounds", "predicted time"]
    return TextTable(head, [_variant_row(each, ranking) for each in rows]), rows.index(ranking.recommended)


def _tried(ranking: Ranking) -> list[Ranked]:
    return [each for each in ranking.ranked if each.forecast is not None]


def _variant_row(each: Ranked, ranking: Ranking) -> list[str]:
    name = each.candidate.in_words(ranking.silos)
    costs = [milliseconds(each.cost.seconds), bytes_in_words(round(each.bytes_per_round))]
    if each.forecast is None:
        return [name, *costs, "–", "–"]
    _, _, _, rounds, time, _ = _row(each.forecast)
    return [name, *costs, rounds, time]


def constants_in_words(constants: Constants) -> str:
    """L and every L_j, and how far they can be trusted."""
    each = ", ".join(f"L_{index} = {value:.4g}" for index, value in enumerate(constants.per_silo, start=1))
    return f"L = {constants.L:.4g}, L_max = {constants.L_max:.4g} ({each}): {constants.kind}, {constants.note}"


def terms(result: MeasuredBound) -> TextTable:
    """The bound's terms and their sum, next to what was measured."""
    limit, rows = result.bound, []
    if limit is not None:
        words = TERMS if result.reused else terms_in_words(result.timing)
        parts = {words[name]: float(getattr(limit, name)) for name in words} | {"bound": limit.total}
        rows = [[term, figure(value), f"{value / limit.total:.0%}"] for term, value in parts.items()]
    if result.bound_interval is not None:
        low, high = map(figure, result.bound_interval)
        rows.append(["bound, sigma at the ends of its interval", f"{low} to {high}", ""])
    head = ["average squared gradient norm", f"T = {result.iterations:,}", "of the bound"]
    return TextTable(head, [*rows, ["measured", figure(result.average), ""]])


def scaled_figures(result: ScaledBound) -> TextTable:
    """What is known of scaled steps, and what follows."""
    known, late = result.constants, timing_in_words(result.timing)
    per_silo = ", ".join(figure(value) for value in known.per_silo)
    count = result.num_silos
    stable = f"for this L, with momentum {result.update.momentum:g}"
    return TextTable(
        ["in scaled units", "value", "from"],
        [
            ["L", figure(known.L), f"{known.kind}; at most N = {count}, 1 without overlap"],
            ["L_j, silo by silo", per_silo, f"{known.kind}; the largest is L_max"],
            ["mu", figure(result.convexity), "the least curvature"],
            ["L(start) - L_inf", figure(result.gap), "an upper bound"],
            ["sigma", figure(result.sigma), "of minibatches" if result.sigma else "every sample is in every step"],
            ["first step", figure(result.first_step), "1 / N" if not late else f"1 / (N (D + 1)), {', '.join(late)}"],
            *([["stable below", figure(result.allowed_step), stable]] if not late else []),
            ["Theorem 1 admits", rounded_down(result.step_size), "a fixed step, without momentum"],
        ],
    )


def draws_in_words(noise: Noise) -> str:
    """The draws that a run's sigma was estimated from."""
    if not any(noise.draws):
        return "exact, since every sample is in the minibatch"
    first, last = noise.draws
    return f"sampled with {counted(first, 'minibatch', 'minibatches')} at the run's start and {last} at its end"


def _ends(noise: Noise) -> str:
    return "" if noise.interval is None else " to ".join(map(figure, noise.interval))


def _noise_rows(noise: Noise) -> list[list[str]]:
    ends = _ends(noise)
    interval = [["95 % interval of sigma_max", ends, "t interval over the minibatches"]] if ends else []
    return [["sigma_max", figure(noise.maximum), draws_in_words(noise)], *interval]


def _reused_rows(result: MeasuredBound) -> list[list[str]]:
    """What the theorem for reused minibatches needs besides L."""
    assert result.reused is not None
    (known, noise), settings = result.reused, result.planned.settings
    drift, left = (f(settings.step_size, settings.local_steps) for f in (known.drift, known.descent))
    where = "exact, the larger of the run's start and its end"
    return [
        ["Lambda", figure(known.client), "an upper bound: how fast a client's gradient of any minibatch can change"],
        ["E", figure(known.expected), "the expected smoothness of a minibatch"],
        ["rho, c", f"{figure(drift)}, {figure(left)}", "drift of a round's steps, and the part of the descent left"],
        ["s^2", figure(noise.averaged), f"the noise of minibatch gradients; {where}"],
        ["v^2", figure(noise.spread), f"that of clients' gradients, and how their rows differ; {where}"],
    ]


def bound_constants(result: MeasuredBound) -> TextTable:
    """The constants of the bound."""
    known, noise, settings = result.constants, result.noise, result.planned.settings
    per_silo = ", ".join(figure(value) for value in known.per_silo)
    return TextTable(
        ["constant", "value", "from"],
        [
            ["L", figure(known.L), f"{known.kind}: {known.note}"],
            ["L_j, silo by silo", per_silo, f"{known.kind}; the largest is L_max"],
            *(_noise_rows(noise) if noise else []),
            *(_reused_rows(result) if result.reused else []),
            ["L(start) - L_inf", figure(result.gap), "an upper bound"],
            ["N, K", f"{result.planned.federation.num_silos}, {result.num_clients:.4g}", "silos, and clients per silo"],
            ["eta, Q", f"{settings.step_size:g}, {settings.local_steps}", "the run's settings"],
            *([["timing", ", ".join(late), "the run's settings"]] if (late := timing_in_words(result.timing)) else []),
        ],
    )


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
        # With a step size that is a number, these have other defaults.
        *([f"batch_size = {ranking.batch_size}", "", "[model]", f"l2 = {ranking.l2}"] * config.train.is_automatic),
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
