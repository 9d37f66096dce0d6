"""Data sets: from config nodes and files to a Benchmark.

`benchmark_config` parses the node, `dataset` opens one set and `build` all of them. `manifests` and `folder_rule` list
the images of a set, `sources` reads them, `loading` batches them. `own` is for images of the user's own, `tabular` for
tables and texts, `download` and `weights` for downloads, `checking` for leakage and faults.
"""
