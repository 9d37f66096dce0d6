"""Where the installed command `openbench` begins: ready for Ctrl-C before anything else is imported."""

from openbench.cli.process import first

first.prepare()

from openbench.cli.process import interrupts, limited  # noqa: E402 - signal and threading take milliseconds

interrupts.prepare()
limited.prepare()


def run() -> int:
    """Run the command line and return its exit code."""
    from openbench.__main__ import script

    return script()
