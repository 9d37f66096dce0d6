"""Tables as values, and their spelling in each output format."""
