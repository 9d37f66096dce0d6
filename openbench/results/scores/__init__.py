"""Per-sample scores: kept ones, and files that others made."""
