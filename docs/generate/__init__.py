"""The part "Look up" of the manual: written from the package, its configs, manifests and records."""
