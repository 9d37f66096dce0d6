"""A paper's tables as data: which runs they are made of, their layout, and the published figures.

`study.study` (a yaml as a value), `runs` (its runs and their records), `cells` (beside published figures), `plan` (what
is to do), `sheet`, `curves`, `chart` and `kept` (tables and pictures), `outputs` (all of them, in every format).
"""
