"""Reports: one self-contained HTML page that reads only a run folder."""

from tdcd.report.page import write_report

__all__ = ["write_report"]
