"""Records, tables, leaderboard and pictures."""
