"""Tables of papers: a yaml of runs and layout, the records of these runs, and published figures.

`study` (the yaml), `runs` (its runs and their records), `cells` (means, published figures, differences), `plan`
(finished and missing runs), `curves` and `tables` (all outputs).
"""
