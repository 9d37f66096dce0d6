"""Pure functions on score arrays: ranking, thresholds, selective risk, conformal, intervals. No torch."""
