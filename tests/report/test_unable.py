"""Where a metric has no value, the boards of the site print the word."""

from openbench.report.site.others import table_of


def test_a_board_prints_the_word_of_a_metric_without_a_value():
    row = {"rank": None, "tied": False, "method": "msp", "training": "cross_entropy", "values": ["unable", [0.5, 0.1]]}
    board = {"title": "AUTC", "about": "a note", "metrics": [{"title": "AUTC", "better": -1}] * 2, "rows": [row]}
    assert table_of(board).texts() == [["–", "msp", "cross_entropy", "unable", "50.00 ± 10.00"]]
