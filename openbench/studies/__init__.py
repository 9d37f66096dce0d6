"""A paper's tables as data: which runs they are made of, their layout, and the published figures."""
