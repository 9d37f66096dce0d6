"""Checks of data for leakage and faults, and contact sheets."""
