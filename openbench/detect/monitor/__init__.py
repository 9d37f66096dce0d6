"""Watching the p-values of a detector as they come: has the stream changed?"""
