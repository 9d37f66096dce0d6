"""Who is told how far an evaluation called from Python is."""

import sys
from types import SimpleNamespace

from openbench.progress import say_of, shown


def test_into_a_pipe_nothing_is_told(capsys):
    assert not shown(True)
    say_of(True)("fitting knn")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_is_told_on_stderr_if_it_was_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say_of(True)("fitting knn")
    say_of(False)("scoring")
    assert capsys.readouterr() == ("", "fitting knn\n")


def test_a_notebook_is_told_in_the_cell(capsys, monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    say_of(True)("fitting knn")
    say_of(False)("scoring")
    assert capsys.readouterr() == ("fitting knn\n", "")


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not shown(True)
