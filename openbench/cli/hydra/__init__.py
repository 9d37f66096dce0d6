"""Everything that knows Hydra: composing configs, sweeps, and errors in the project's words."""
