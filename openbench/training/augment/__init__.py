"""Augmentations: what happens to images before the network learns from them."""
