"""A user's own images as data sets and as a benchmark."""
