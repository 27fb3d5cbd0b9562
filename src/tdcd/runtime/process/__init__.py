"""Real parties as processes: drivers around the state machines, trials on one machine, conversations beside training."""
