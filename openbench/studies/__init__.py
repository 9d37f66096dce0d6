"""A paper's tables as data: a yaml of runs and layout, a look-up of their records, and published figures.

`study` (the yaml), `runs` (its runs and their records), `cells` (means, published figures, differences), `plan` (what
is done and missing), `tables`, `curves` and `chart` (tables and pictures, as files).
"""
