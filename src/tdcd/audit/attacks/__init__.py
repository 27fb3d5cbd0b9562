"""Attacks of the literature as small pure functions."""
