"""Sweeps: many settings of one configuration, batched where their shapes are the same."""
