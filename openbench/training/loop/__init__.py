"""The only training loop, and what it needs on its way: processes, checkpoints, progress."""
