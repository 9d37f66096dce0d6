"""What people look at: pages made from records and kept scores alone, never from a model.

`run_page.run_page` (one run), `site` (the leaderboard to sort, filter and compare).
"""
