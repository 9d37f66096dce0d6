"""The only training loop, and what it uses: processes, checkpoints, progress."""
