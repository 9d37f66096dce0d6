"""Manifests, readers, transforms and the building and checking of benchmarks."""
