"""The tables of a recommendation and of a bound, for the terminal and for the page."""

from tdcd.core.words import counted
from tdcd.pages.kit.words import TextTable, bytes_in_words, duration, figure, milliseconds, rounded_down
from tdcd.planning.forecast import Forecast
from tdcd.planning.local_steps import Recommendation
from tdcd.planning.measured_bound import MeasuredBound
from tdcd.planning.variants import Ranked, Ranking, worthwhile
from tdcd.theory import Constants, Noise
from tdcd.theory.staleness import terms_in_words, timing_in_words


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
    """The bound's terms and their sum, beside what was measured."""
    limit, rows = result.bound, []
    if limit is not None:
        words = terms_in_words(result.timing)
        parts = {words[name]: float(getattr(limit, name)) for name in words} | {"bound": limit.total}
        rows = [[term, figure(value), f"{value / limit.total:.0%}"] for term, value in parts.items()]
    if result.bound_interval is not None:
        low, high = map(figure, result.bound_interval)
        rows.append(["bound, sigma at the ends of its interval", f"{low} to {high}", ""])
    head = ["average squared gradient norm", f"T = {result.iterations:,}", "of the bound"]
    return TextTable(head, [*rows, ["measured", figure(result.average), ""]])


def draws_in_words(noise: Noise) -> str:
    """What a run's sigma rests on."""
    if not any(noise.draws):
        return "exact, since every sample is in the minibatch"
    first, last = noise.draws
    return f"sampled with {counted(first, 'minibatch', 'minibatches')} at the run's start and {last} at its end"


def _ends(noise: Noise) -> str:
    return "" if noise.interval is None else " to ".join(map(figure, noise.interval))


def bound_constants(result: MeasuredBound) -> TextTable:
    """What the bound was computed from."""
    known, noise, settings = result.constants, result.noise, result.planned.settings
    per_silo = ", ".join(figure(value) for value in known.per_silo)
    return TextTable(
        ["constant", "value", "from"],
        [
            ["L", figure(known.L), f"{known.kind}: {known.note}"],
            ["L_j, silo by silo", per_silo, f"{known.kind}; the largest is L_max"],
            ["sigma_max", figure(noise.maximum), draws_in_words(noise)],
            *(
                [["95 % interval of sigma_max", ends, "t interval over the minibatches"]]
                if (ends := _ends(noise))
                else []
            ),
            ["L(start) - L_inf", figure(result.gap), "an upper bound"],
            ["N, K", f"{result.planned.federation.num_silos}, {result.num_clients:.4g}", "silos, and clients per silo"],
            ["eta, Q", f"{settings.step_size:g}, {settings.local_steps}", "the run's settings"],
            *([["timing", ", ".join(late), "the run's settings"]] if (late := timing_in_words(result.timing)) else []),
        ],
    )
