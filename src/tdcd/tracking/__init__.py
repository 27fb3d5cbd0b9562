"""Runs in other people's trackers: a reader of run folders that tells MLflow or TensorBoard what is in them."""
