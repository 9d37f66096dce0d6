"""Tabular data sets: rows in place of images."""
