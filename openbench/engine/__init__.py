"""From a config to a record.

`prepare.prepare` builds benchmark, backbone and method; `run.run` tunes, fits, scores and writes the record;
`evaluate` (cached features, fit, score), `tune`, `probe` (checks before reuse), `compatibility` (what a method needs),
`provenance`. `prepare` also has the jobs `train`, `extract` and `check`.
"""
