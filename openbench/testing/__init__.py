"""Public checks and toy data for authors of methods, ours and third parties."""
