"""Methods that learn from the stream of test images; they have a protocol and a table of their own."""
