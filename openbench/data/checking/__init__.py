"""What can be wrong with data, and pictures of what is in it."""
