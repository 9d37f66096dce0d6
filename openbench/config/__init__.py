"""Config nodes as plain values, without Hydra.

`constraints` (types of parameters, and the check of values), `build` (objects from nodes), `folders` (where config
files are, and those that openbench ships), `overrides` (values and command lines as they are typed).
"""
