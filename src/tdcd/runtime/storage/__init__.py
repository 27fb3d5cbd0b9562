"""What a hub keeps on disk: checkpoints, journals, its run folder and its status."""
