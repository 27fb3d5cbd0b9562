"""Attacks on what each party sees, per protection mode."""

from tdcd.audit.audit import EPSILON, ROUNDS, Audit, audit
from tdcd.audit.lines import AuditFinding
from tdcd.audit.modes import Mode, modes_of

__all__ = ["EPSILON", "ROUNDS", "Audit", "AuditFinding", "Mode", "audit", "modes_of"]
