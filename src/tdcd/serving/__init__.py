"""Predictions as a service of one's own organisation, from phi that its partners publish ahead.

:mod:`tdcd.serving.publication` has the signed file that a silo publishes, :mod:`tdcd.serving.scorer` what follows from
such files for given ids, and :mod:`tdcd.serving.service` the HTTP service.
"""
