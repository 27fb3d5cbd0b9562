"""What the terminal shows: live progress and result tables. A command imports only what it shows."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import rich.box
import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from tdcd.core.execution import Interrupted
from tdcd.core.words import TextTable, are, bytes_in_words, counted, duration, figure

if TYPE_CHECKING:
    from tdcd.audit import Audit
    from tdcd.compare.comparison import Comparison
    from tdcd.config import Config
    from tdcd.federation.silos import SiloIds
    from tdcd.planning import AutomaticRun, Forecast, MeasuredBound, NoisePlan, Ranking, Recommendation, ScaledBound
    from tdcd.theory import EstimateProgress
    from tdcd.training.sweep.runner import SweepProgress
    from tdcd.training.train import Progress, Result

VERBATIM: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
"""For lines that are to be copied."""
LONG_NAME = 20
LONG_WAIT_S = 60.0
"""After how long a wait for the same parties a display says what may have happened."""
"""Letters beyond which a row's name may be broken into lines."""


class Display:
    """Progress bars on a terminal, and the request to stop.

    Where the output is not a terminal, subclasses print a line now and then instead.
    """

    stopping = "Stopping after this round; once more to stop at once."
    """Printed when the user asks to stop."""

    def __init__(self, console: Console, *columns: ProgressColumn | str) -> None:
        """Show ``columns`` on ``console``."""
        self._console = console
        self._stopped = self._said = False
        shown = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
        self._bar = rich.progress.Progress(*shown, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        """Start the display."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._bar.stop()

    def stop(self) -> None:
        """Ask to stop. Safe in a signal handler: it only sets a flag."""
        self._stopped = True

    def should_stop(self) -> bool:
        """Whether the user asked to stop."""
        if self._stopped and not self._said:
            self._said = True
            self._console.print(self.stopping, highlight=False)
        return self._stopped


class RunDisplay(Display):
    """One run: the round, the loss, the rounds per second and the time left."""

    def __init__(self, console: Console) -> None:
        """Show on ``console``."""
        columns = ("round", MofNCompleteColumn(), BarColumn(), "loss {task.fields[loss]}", "{task.fields[speed]}")
        super().__init__(console, *columns, TimeRemainingColumn())
        self._task = self._bar.add_task("train", total=None, loss="...", speed="")
        self._tenths = -1

    def observe(self, news: "Progress") -> None:
        """Show the run's progress."""
        bar = self._bar.tasks[0]
        if bar.total is None:
            self._bar.reset(self._task, total=news.rounds, completed=news.round)
        speed = f"{bar.speed:,.1f} rounds/s" if bar.speed else ""
        self._bar.update(self._task, completed=news.round, speed=speed)
        if news.record is None:
            return
        self._bar.update(self._task, loss=f"{news.record.train_loss:.4g}")
        tenths = news.round * 10 // max(news.rounds, 1)
        if not self._console.is_terminal and tenths > self._tenths:
            self._tenths = tenths
            line = f"round {news.round}/{news.rounds}  loss {news.record.train_loss:.4g}"
            self._console.print(line, highlight=False)


class SweepDisplay(Display):
    """Many runs: which one, its round, and how many are done."""

    def __init__(self, console: Console, total: int) -> None:
        """Show on ``console`` the progress of ``total`` runs."""
        super().__init__(
            console, "{task.description}", "round {task.fields[round]}", BarColumn(), MofNCompleteColumn(), "runs"
        )
        self._task = self._bar.add_task("starting", total=total, round="")
        self._before = 0
        self._said_labels: set[str] = set()

    def begin(self, runs_before: int) -> None:
        """An experiment starts after ``runs_before`` runs of others."""
        self._before = runs_before

    def observe(self, news: "SweepProgress") -> None:
        """Show the sweep's progress."""
        now, rounds = news.progress.round, news.progress.rounds
        done = self._before + news.done
        self._bar.update(self._task, description=news.label, round=f"{now}/{rounds}", completed=done)
        if not self._console.is_terminal and news.label not in self._said_labels:
            self._said_labels.add(news.label)
            self._console.print(news.label, highlight=False)


class EstimateDisplay(Display):
    """Estimates and pilot runs: what is being computed, and its figure so far."""

    def __init__(self, console: Console) -> None:
        """Show on ``console``."""
        super().__init__(console, "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("starting", total=None)
        self._finished = 0

    def observe(self, news: "EstimateProgress") -> None:
        """Show the progress of an estimate, and end it if the user asked to stop."""
        if self._stopped:
            raise Interrupted("Interrupted; nothing was written.")
        words = f"{news.name}: {news.value:.4g}"
        self._bar.update(self._task, description=words, completed=news.done, total=news.total)
        if not self._console.is_terminal and news.done == news.total != self._finished:
            self._console.print(words, highlight=False)
        self._finished = news.total if news.done == news.total else 0


def show_result(console: Console, result: "Result", page: Path) -> None:
    """The final figures, and where everything is."""
    from tdcd.config.user_code import resume_command
    from tdcd.core.certificate import in_words
    from tdcd.records.run_folder import RunFolder

    shown, last = result.final, next(record for record in reversed(result.history) if not record.diverged)
    table = Table("", "training", "held out")
    held_out = shown.metrics.get("test", {})
    table.add_row("loss", _number(shown.train_loss), _number(shown.test_loss))
    for name, value in shown.metrics["train"].items():
        table.add_row(
            {"rmse": "RMSE", "r2": "R2", "auc": "AUC", "d2": "D2", "mae": "MAE"}.get(name, name),
            _number(value),
            _number(held_out.get(name)),
        )
    console.print(table)
    if known := in_words(shown.gap, shown.gradient_norm):
        console.print(f"Training loss: {known}", soft_wrap=True, highlight=False)
    if last.epsilon is not None:
        spent = f"Epsilon spent of a row's phi: {last.epsilon:.3g}, by given blocks. Figures are of scores with noise"
        console.print(f"{spent}.", soft_wrap=True, highlight=False)
    evaluated = last.evaluation_bytes
    also = "" if evaluated is None else f" and {bytes_in_words(evaluated.total)} for evaluation"
    spent = f"{bytes_in_words(last.bytes.total)} sent{also}, {duration(last.seconds)}"
    words = f"{counted(last.round, 'round')}, {counted(last.iteration, 'local step')}, {spent}, engine {result.engine}"
    console.print(words, soft_wrap=True, highlight=False)
    if result.status == "diverged":
        settings, is_steered = result.simulation.settings, result.simulation.variant.is_steered
        sizes = f"it is {settings.step_size:g}), fewer train.local_steps (they are {settings.local_steps}"
        console.print(
            f"Diverged: {result.reason}. The model of round {result.round} is kept. Try a smaller train.step_size "
            f"({'it is auto' if is_steered else sizes}), or data.standardize = true.",
            style="red",
            highlight=False,
        )
    elif result.reason:
        console.print(f"{result.reason[:1].upper()}{result.reason[1:]}.", soft_wrap=True, highlight=False)
    if result.status == "interrupted":
        assert result.folder is not None
        resume = resume_command(result.folder, RunFolder(result.folder).config())
        console.print(f"Interrupted at round {result.round}. To continue: {resume}", highlight=False)
    console.print(f"Run folder: {result.folder}", soft_wrap=True, highlight=False)
    console.print(f"Report:     {page}", soft_wrap=True, highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def show_comparison(console: Console, comparison: "Comparison", page: Path) -> None:
    """How the algorithms did, what joining gains each silo, and where the page is."""
    from tdcd.compare.tables import costs, interactions, joined, joining, summary

    console.print(_table(summary(comparison)), "", _table(costs(comparison)), "", sep="\n")
    for sentence in interactions(comparison):
        console.print(sentence, "", sep="\n", highlight=False)
    if comparison.joined:
        console.print(_table(joined(comparison)))
        console.print("scikit-learn needs all raw data in one place: only a trial has that.\n", highlight=False)
    if comparison.silo_only:
        console.print(_table(joining(comparison)), "")
    console.print(f"Page: {page}", soft_wrap=True, highlight=False)


def show_recommendation(console: Console, recommendation: "Recommendation") -> None:
    """The table over Q, what each sends, the row to take, and how far to trust it."""
    from tdcd.planning.tables import constants_in_words, over_q, sent

    kind = "the least possible" if recommendation.optimum_known else "the lowest of the pilot runs"
    facts = [
        f"Target loss {figure(recommendation.target)}: before training it is {figure(recommendation.initial)}, "
        f"{kind} is {figure(recommendation.lowest)}.",
        f"Links: client to hub {recommendation.network.client_hub}; hub to hub {recommendation.network.hub_hub}.",
    ]
    if recommendation.constants is not None:
        facts.append(f"Constants: {constants_in_words(recommendation.constants)}.")
    console.print(*facts, sep="\n", highlight=False)
    best = recommendation.recommended
    chosen = None if best is None else recommendation.forecasts.index(best)
    console.print("", _table(over_q(recommendation), chosen), "", _table(sent(recommendation), chosen), "", sep="\n")
    console.print(recommendation.reason, style="bold yellow" if best is None else "bold green", highlight=False)
    if best is not None:
        _warn(console, best)
    console.print(*(f"- {note}" for note in recommendation.notes), sep="\n", highlight=False)


def _warn(console: Console, forecast: "Forecast") -> None:
    if forecast.warning:
        console.print(forecast.warning, style="bold yellow", highlight=False)


def show_automatic_run(console: Console, automatic: "AutomaticRun", network: str) -> None:
    """What the automatic run takes on every network, and whether to leave its steps automatic on the one named."""
    from tdcd.planning.tables import over_networks

    content = over_networks(automatic)
    chosen = [row[0] for row in content.rows].index(network)
    console.print("", _table(content, chosen), "", sep="\n")
    console.print(
        automatic.verdict(network), style="bold green" if automatic.reached else "bold yellow", highlight=False
    )
    console.print(f"- {automatic.source}", highlight=False)


def show_ranking(console: Console, ranking: "Ranking", config: "Config") -> None:
    """The table over overlap, periods and bits, what to make of it, and the lines to write into the configuration."""
    from tdcd.planning.tables import advice, configuration_lines, over_variants

    content, chosen = over_variants(ranking)
    console.print("", f"With Q = {ranking.local_steps}:", "", sep="\n", highlight=False)
    console.print(_table(content, chosen), "")
    *notes, conclusion = advice(ranking)
    console.print(conclusion, style="bold green", highlight=False)
    taken = ranking.recommended
    if taken is not ranking.own and taken.forecast is not None:
        _warn(console, taken.forecast)
    console.print(*(f"- {note}" for note in notes), sep="\n", highlight=False)
    console.print("", "To take it, write:", "", *configuration_lines(ranking, config), sep="\n", **VERBATIM)


def show_noise(console: Console, planned: "NoisePlan") -> None:
    """The table over rounds, and what to write."""
    console.print(
        f"Noise on phi for epsilon = {planned.epsilon:g}, delta = {planned.delta:g}:",
        "",
        sep="\n",
        highlight=False,
    )
    console.print(_table(planned.table), "")
    console.print(planned.in_words, **VERBATIM)


def show_bound(console: Console, result: "MeasuredBound", page: Path) -> None:
    """The bound's terms next to what was measured, the verdict, and where the page is."""
    from tdcd.planning.tables import constants_in_words, draws_in_words, terms

    console.print(f"Constants: {constants_in_words(result.constants)}.", highlight=False)
    if result.noise is not None:
        console.print(f"Sigma: {figure(result.noise.maximum)}, {draws_in_words(result.noise)}.", highlight=False)
    console.print("", _table(terms(result)), "", sep="\n")
    console.print(result.verdict, style="bold green" if result.holds else "bold red", highlight=False)
    console.print(*(f"- {caveat}" for caveat in result.caveats), sep="\n", highlight=False)
    console.print(f"Page: {page}", soft_wrap=True, highlight=False)


def show_scaled_bound(console: Console, result: "ScaledBound", page: Path | None) -> None:
    """What theory says of scaled steps on this data, and where the page is."""
    from tdcd.planning.tables import scaled_figures

    console.print(_table(scaled_figures(result)), "")
    console.print(result.verdict, style="bold green" if result.bound else "bold yellow", highlight=False)
    console.print(*(f"- {caveat}" for caveat in result.caveats), sep="\n", highlight=False)
    if page is not None:
        console.print(f"Page: {page}", soft_wrap=True, highlight=False)


def show_audit(console: Console, audit: "Audit", page: Path) -> None:
    """What attacks recovered, mode by mode, and where the page is."""
    from tdcd.audit.tables import overview

    for group, table in overview(audit):
        console.print(group, style="bold", highlight=False)
        console.print(_table(table), "")
    words = "Recovered / guess without the transcript; * is what the configuration asks for. The page has the readings."
    console.print(words, highlight=False)
    console.print(f"Page: {page}", soft_wrap=True, highlight=False)


def show_alignment(console: Console, silos: "Mapping[str, SiloIds]") -> None:
    """What each silo lost by keeping to the ids that all have, where that was done."""
    if silos:
        from tdcd.pages.report import alignment_table

        common = next(iter(silos.values())).common
        console.print(f"{counted(common, 'id')} {are(common)} in every silo:", highlight=False)
        show_table(console, alignment_table(silos))


def show_table(console: Console, table: TextTable, highlighted: int | None = None) -> None:
    """A table, with one of its rows highlighted."""
    console.print(_table(table, highlighted), "")


def _table(content: TextTable, highlighted: int | None = None) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=0)
    names = [row[0] for row in content.rows]
    for place, title in enumerate(content.head):
        table.add_column(
            title,
            justify="right" if place else "left",
            no_wrap=not place and max(map(len, names), default=0) <= LONG_NAME,
            overflow="fold",
            min_width=max(map(len, title.split()), default=0),
        )
    for place, row in enumerate(content.rows):
        # Names and labels are of the data: never markup.
        table.add_row(*map(Text, row), style="bold green" if place == highlighted else None)
    return table


class WaitingDisplay(Display):
    """Who is being waited for, and how much of this party's work is done."""

    stopping = "Stopping; once more to stop at once."

    def __init__(self, console: Console, doing: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, "{task.description}", BarColumn(), TaskProgressColumn())
        self._doing, self._missing = doing, [""]
        self._clock, self._since, self._has_hinted = clock, 0.0, False
        self._task = self._bar.add_task(doing, total=1.0)

    def show(self, missing: list[str]) -> None:
        """Say who is missing."""
        if missing == self._missing:
            # Of others there is a sentence that says why they have no link.
            away = [party for party in missing if " " not in party]
            if away and not self._has_hinted and self._clock() - self._since > LONG_WAIT_S:
                self._has_hinted = True
                # Who was killed at the very end comes back to parties that have ended.
                words = f"If {' or '.join(away[:3])} has finished already, start this command again at all parties."
                self._console.print(words, **VERBATIM)
            return
        self._missing, self._since = missing, self._clock()
        shown = ", ".join(escape(party) for party in missing[:3])
        names = f"; waiting for {shown}{', ...' if len(missing) > 3 else ''}" if missing else ""
        self._bar.update(self._task, description=self._doing + names)
        if names and not self._console.is_terminal:
            self._console.print(self._doing + names, highlight=False)

    def progress(self, done: float) -> None:
        """Show which fraction is done."""
        self._bar.update(self._task, completed=done)
