"""Records, tables, leaderboard and pictures; no network is run.

`records` (one file a run), `scores` (of each image), `frame` (all records as one table), `leaderboard`, `comparisons`,
`tables`, `plots`; `submissions` and `checks` for what others send in and compute again; `names` and `escape`.
"""
