"""The types that everything else speaks; no behaviour beyond them.

`request` (what a method needs), `features` (cached tensors of a split), `method` with its kinds `composite`, `live` and
`streaming`, `search` (of hyper-parameters), `inputs` (what methods refuse), `benchmark` (splits), `preprocess`,
`scores` (of a set), `record` (of a run), `products` (of matrices).
"""
