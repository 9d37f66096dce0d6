"""Classifiers fitted on the cached features of a network that has none."""
