"""What a run and its record say of how the numbers came about."""
