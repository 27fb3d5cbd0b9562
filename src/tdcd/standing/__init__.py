"""A standing federation: parties that wait for jobs, and compute only what every organisation has signed.

:mod:`tdcd.standing.statements` has what parties sign, :mod:`tdcd.standing.log` the chains of what they have signed,
:mod:`tdcd.standing.jobs` what follows from these chains, :mod:`tdcd.standing.policy` what an organisation approves
without a person, :mod:`tdcd.standing.service` the process that waits, and :mod:`tdcd.standing.step` the one that works.
"""
