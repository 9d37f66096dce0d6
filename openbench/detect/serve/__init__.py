"""A detector behind HTTP: images in, JSON out, in small batches, within limits."""
