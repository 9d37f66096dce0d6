"""From a config to a record: search, tuning, evaluation.

`prepare.prepare` makes objects that are ready, `run.run` carries a run out, `verify` repeats one; `evaluate` (cached
features, fit, score), `tune`, `per_set` and `streams` are its steps, `heads`, `probe`, `compatibility` and `provenance`
what it needs beside them; `jobs` has `train`, `extract` and `check`.
"""
