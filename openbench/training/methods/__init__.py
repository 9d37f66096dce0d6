"""Training methods, one file each: what is added to a network, and the loss of a batch."""
