"""Attacks on what each party sees, per protection mode."""
