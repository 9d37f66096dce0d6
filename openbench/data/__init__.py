"""From config nodes and files to a Benchmark: which images belong to a set, where they are found, and what is wrong.

`benchmark_config` (the node), `dataset` (one set of it) and `build` (all of them) lead to a Benchmark; `manifests` and
`folder_rule` say which images a set has, `sources` where they come from; `own` is for a user's images, `tabular` for
tables and texts, `download` and `weights` for what is fetched, `checking` for leakage and faults, `loading`.
"""
