"""What NumPy raises for an array file with damaged bytes, header included."""

from tokenize import TokenError

# NumPy reads old headers with Python's tokenizer, whose error has no base class in common with the others.
DAMAGED = (OSError, ValueError, EOFError, TypeError, KeyError, SyntaxError, OverflowError, TokenError)
