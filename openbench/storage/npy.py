"""What NumPy raises for an array file with damaged bytes, header included."""

from tokenize import TokenError

# An old reader of headers goes through Python's tokenizer, whose error is of no common kind.
DAMAGED = (OSError, ValueError, EOFError, TypeError, KeyError, SyntaxError, OverflowError, TokenError)
