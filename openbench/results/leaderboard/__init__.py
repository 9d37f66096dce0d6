"""The leaderboard: records to rows, rows to pages and pictures."""
