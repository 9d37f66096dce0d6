"""Config nodes as plain values, without Hydra: types and checks of values, building objects, shipped files, overrides."""
