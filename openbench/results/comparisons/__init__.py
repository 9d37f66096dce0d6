"""Comparisons of methods from kept scores."""
