"""Search, tuning, evaluation and the run that ends in a record."""
