"""Per-sample scores: stored ones, and files of scores from elsewhere."""
