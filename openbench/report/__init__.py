"""Pages from records and saved scores: `run_page.run_page` (one run) and `site` (the leaderboard)."""
