"""A detector for use outside the benchmark: an OOD method on a network, with a calibrated threshold."""
