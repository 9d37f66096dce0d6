"""The training contract, the one loop, and one file per training method."""
