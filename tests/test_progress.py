"""Who is told how far a job is, and how: a bar, lines now and then, or nothing."""

import logging
import sys
from types import SimpleNamespace

from openbench import progress
from openbench.progress import Report, messages, shown


def say(show):
    with messages(show):
        logging.getLogger("openbench.engine.run").info("fitting knn")


def test_progress_is_shown_on_a_terminal_if_it_was_asked_for(capsys, monkeypatch):
    assert not shown(True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert (shown(True), shown(False)) == (True, False)
    say(True)
    say(False)
    assert capsys.readouterr() == ("", "fitting knn\n")


def test_a_notebook_is_told_in_the_cell(capsys, monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert shown(True)
    say(True)
    say(False)
    assert capsys.readouterr() == ("fitting knn\n", "")


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not shown(True)


def test_in_a_pipe_lines_tell_the_rate_of_this_job_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", iter((8.0, 9.0, 20.0, 22.0)).__next__)
    with Report("toy", 100, done=40) as report:
        report.advance(10)  # too soon for a line
        report.advance(20)
        report.advance(30)  # the last one always has one
    lines = ["toy: 70 of 100 images, 2 images/s, 12 s left", "toy: 100 of 100 images, 4 images/s, 14.0 s", ""]
    assert capsys.readouterr() == ("", "\n".join(lines))


def test_on_a_terminal_a_bar_is_below_its_title(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Report("toy [x]", 100, done=40) as report:
        report.advance(60)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("toy [x]\n")
    assert "100/100" in err
