"""openbench: out-of-distribution detection measured so that the numbers can be trusted."""

__version__ = "0.1.0"
