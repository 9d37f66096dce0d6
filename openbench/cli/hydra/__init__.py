"""Jobs and sweeps under Hydra: `app` carries them out, `outcome` has what the jobs of a sweep leave in its folder."""
