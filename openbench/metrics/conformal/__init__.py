"""Conformal p-values, their corrections, and prediction sets."""
