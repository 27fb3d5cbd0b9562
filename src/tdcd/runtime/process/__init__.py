"""Real parties as processes: drivers around the state machines, trials on one machine, dialogues outside training."""
