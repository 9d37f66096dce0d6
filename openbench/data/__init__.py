"""Data sets: from config nodes and files to a Benchmark.

`benchmark_config` parses the node, `dataset` opens one set, `build` all of them; `manifests` lists the images of a set,
`sources` reads them, `loading` batches them. `own` is for a user's images, `tabular` for tables and texts, `download`
and `weights` for downloads, `checking` for leakage and faults.
"""
