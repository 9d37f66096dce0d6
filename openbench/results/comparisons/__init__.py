"""Comparisons of methods from stored scores."""
