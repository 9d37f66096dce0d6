"""The process of a command: signals, limits, exit codes."""
