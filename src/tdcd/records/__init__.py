"""What a run leaves behind: history, metrics, and the run folder with everything that guards it."""
