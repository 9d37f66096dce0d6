"""Config nodes as plain values, without Hydra: types and checks of values, objects, shipped files, overrides."""
