"""Records, tables, boards and pictures; no network is run.

`records` (one file for each run), `scores` (of each image), `frame` (all records as one table), `leaderboard`,
`comparisons`, `tables`, `plots`, `submissions` (results of others), `checks` (recomputed records), `escape`.
"""
