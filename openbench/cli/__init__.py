"""The command line; with `compose` the only place that knows Hydra.

`app` (the table of commands), `commands`, `options`, `output` (what commands print), `registry` (what `list` and `show`
offer), `process` (signals, exit codes).
"""
