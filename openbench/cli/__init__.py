"""The command line; with `compose` the only place that knows Hydra.

`app` (the table of commands), `commands`, `hydra` (jobs and sweeps), `options`, `output` (what commands print),
`registry` (what `list` and `show` offer), `reproduce` (the command that makes a record again), `process` (signals, exit
codes).
"""
