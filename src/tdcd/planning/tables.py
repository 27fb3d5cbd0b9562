"""The tables of a plan and of a bound, for the terminal and for the page."""

from tdcd.planning.check import TERMS, Check
from tdcd.planning.plan import PlanTable
from tdcd.planning.row import Row
from tdcd.report.text_table import TextTable
from tdcd.report.units import bytes_in_words, duration, figure, rounded_down
from tdcd.theory import Constants


def over_q(table: PlanTable) -> TextTable:
    """A row a Q: step sizes, rounds and time."""
    head = ["Q", "safe step size", "pilot's step size", "rounds", "predicted time", "rounds by Theorem 1"]
    return TextTable(head, [_row(row) for row in table.rows])


def _row(row: Row) -> list[str]:
    safe = "–" if row.safe_step_size is None else rounded_down(row.safe_step_size)
    promised = "–" if row.promised_rounds is None else f"{row.promised_rounds:.2g}"
    size = rounded_down(row.step_size)
    if row.failed:
        return [str(row.local_steps), safe, size, "diverges", "–", promised]
    rounds, time = f"{row.least_rounds:,}", duration(row.seconds)
    if row.rounds is None:
        rounds, time = f"> {rounds}", f"> {time}"
    return [str(row.local_steps), safe, size, rounds, time, promised]


def sent(table: PlanTable) -> TextTable:
    """A row a Q: bytes by kind of link until the target, and in all."""
    head = ["Q", "client to hub", "hub to client", "hub to hub", "sent in all"]
    return TextTable(head, [_sent(row) for row in table.rows])


def _sent(row: Row) -> list[str]:
    traffic = row.traffic
    if row.failed:
        return [str(row.local_steps), "–", "–", "–", "–"]
    counts = [traffic.client_to_hub, traffic.hub_to_client, traffic.hub_to_hub, traffic.total]
    return [str(row.local_steps), *(("> " if row.rounds is None else "") + bytes_in_words(count) for count in counts)]


def constants_in_words(constants: Constants) -> str:
    """L and every L_j, and how far they can be trusted."""
    each = ", ".join(f"L_{index} = {value:.4g}" for index, value in enumerate(constants.per_silo, start=1))
    return f"L = {constants.L:.4g}, L_max = {constants.L_max:.4g} ({each}): {constants.kind}, {constants.note}"


def terms(check: Check) -> TextTable:
    """The bound's terms and their sum, beside what was measured."""
    limit, rows = check.bound, []
    if limit is not None:
        parts = {words: float(getattr(limit, name)) for name, words in TERMS.items()} | {"bound": limit.total}
        rows = [[words, figure(value), f"{value / limit.total:.0%}"] for words, value in parts.items()]
    head = ["average squared gradient norm", f"T = {check.iterations:,}", "of the bound"]
    return TextTable(head, [*rows, ["measured", figure(check.average), ""]])


def checked_constants(check: Check) -> TextTable:
    """What the bound was computed from."""
    known, noise, settings = check.constants, check.noise, check.planned.settings
    per_silo = ", ".join(figure(value) for value in known.per_silo)
    return TextTable(
        ["constant", "value", "from"],
        [
            ["L", figure(known.L), f"{known.kind}: {known.note}"],
            ["L_j, silo by silo", per_silo, f"{known.kind}; the largest is L_max"],
            ["sigma_max", figure(noise.maximum), f"sampled with {noise.draws} minibatches, at the run's start and end"],
            ["L(start) - L_inf", figure(check.gap), "an upper bound"],
            ["N, K", f"{check.planned.federation.num_silos}, {check.num_clients:.4g}", "silos, and clients a silo"],
            ["eta, Q", f"{settings.step_size:g}, {settings.local_steps}", "the run's settings"],
        ],
    )
