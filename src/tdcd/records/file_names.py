"""What the files of a run folder and of a sweep's are called; reading this needs no JAX."""

CONFIG, HISTORY, FACTS, REPORT = "config.toml", "history.jsonl", "federation.json", "report.html"
SWEEP = "sweep.json"
