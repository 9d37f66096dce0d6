"""Records of runs: written once, read checked, compared."""
