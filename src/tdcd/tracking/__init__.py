"""Runs in other people's trackers: a reader of run folders that sends their content to MLflow or TensorBoard."""
