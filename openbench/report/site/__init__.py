"""The static site of a leaderboard: files that a browser opens from a disk or from any host."""
