"""One forward pass per image, its columns cached for every method."""
