"""Public checks and toy data for authors of methods, in openbench and elsewhere."""
