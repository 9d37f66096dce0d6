"""Selective classification: risk, coverage, double scores."""
