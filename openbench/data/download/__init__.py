"""Getting data sets: downloads that resume, checked by hash, and unpacking."""
