"""Training: the round loop, begin and resume, sweeps, and each silo without the others."""
