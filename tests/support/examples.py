"""Which examples hypothesis draws: the same ones in CI, others on every day elsewhere.

No example is kept between runs, so a test passes or fails by the code and the day alone. Nothing has a time limit:
programs compile, and machines are busy. ``quick`` draws few; ``make quick`` asks for it.
"""

import os
from datetime import date

import pytest
from hypothesis import HealthCheck, settings

IN_CI = bool(os.environ.get("CI"))
COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, **COMMON)
settings.register_profile("daily", derandomize=False, **COMMON)
settings.load_profile("ci" if IN_CI else "daily")
settings.register_profile("quick", max_examples=20)  # and otherwise like the one that is loaded


def num_examples(count: int) -> settings:
    """So many examples, but no more than the quick set draws if that is what runs."""
    most = settings.get_profile("quick").max_examples
    return settings(max_examples=min(count, most) if settings().max_examples == most else count)


def seed_of(day: date) -> int:
    """A seed that is the same all day: 20261117 on 17 November 2026."""
    return int(f"{day:%Y%m%d}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before hypothesis reads it; workers get the options of the process that started them."""
    if config.option.hypothesis_seed is None and not IN_CI:
        config.option.hypothesis_seed = str(seed_of(date.today()))


def pytest_report_header(config: pytest.Config) -> str:
    if settings().derandomize:
        return "examples: those of CI"
    return f"examples: repeat them with --hypothesis-seed={config.option.hypothesis_seed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """The same again, where a quiet run that failed shows it."""
    if exitstatus:
        terminalreporter.write_line(pytest_report_header(config))
