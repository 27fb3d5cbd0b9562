"""Who holds which columns and rows: silos, how rows are split, and where each sample of a minibatch is."""
