"""The exit codes of every command."""

OK = 0
FAILED = 1  # a check failed, or an internal error with its traceback
BAD_INPUT = 2  # arguments, configs, data or files; one message on stderr
INTERRUPTED = 130  # Ctrl-C, as shells count it
