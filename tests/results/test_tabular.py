"""Tabular records beside published figures: which numbers meet, their means over draws, and what is refused."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from openbench.errors import RecordError

from .records import make_record

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare_adbench.py"))
gaps, load_figures, summary = (SCRIPT[name] for name in ("gaps", "load_figures", "summary"))


def record(table="wine", draw=1, method="pca", auroc=0.8, protocol="adbench"):
    return make_record(
        config={"benchmark": {"protocol": protocol, "draw": draw}},
        benchmark={"name": f"adbench_{table}"},
        method={"name": method},
        metrics={"anomalies": {"auroc": auroc, "conformal_auroc": auroc - 0.1}},
    )


def test_the_mean_over_draws_is_set_beside_the_figure():
    figures = {("wine", "pca", "auroc"): 0.84, ("wine", "pca", "conformal_auroc"): 0.75}
    found = gaps([record(draw=d, auroc=a) for d, a in ((1, 0.8), (2, 0.9), (3, 0.85))], figures)
    auroc, conformal = found.itertuples()
    assert (auroc.metric, auroc.draws, conformal.metric) == ("auroc", 3, "conformal_auroc")
    assert (auroc.ours, auroc.std) == (pytest.approx(0.85), pytest.approx(0.040825, abs=1e-6))
    assert (auroc.difference, conformal.difference) == (pytest.approx(0.01), pytest.approx(0.0))


def test_what_was_not_published_or_run_by_another_protocol_is_passed_over():
    figures = {("wine", "pca", "auroc"): 0.84}
    others = [record(table="glass"), record(method="mds"), record(protocol="held_out"), make_record()]
    assert len(gaps(others, figures)) == 0
    assert len(gaps([*others, record()], figures)) == 1


def test_two_settings_of_one_method_are_refused():
    with pytest.raises(RecordError, match="wine, draw 1: two records of method 'pca'"):
        gaps([record(), record(auroc=0.7)], {})


def test_the_summary_has_the_median_and_names_the_largest_first():
    # Rounding to two decimals explains half a hundredth, as of c.
    rows = [(t, "pca", "auroc", 0.8 + d, 0.0, 3, 0.8, d) for t, d in (("a", 0.01), ("b", -0.2), ("c", 0.005))]
    head, line = summary(pd.DataFrame(rows, columns=list(SCRIPT["ADBENCH_COLUMNS"])), worst=2)
    assert line.split() == ["auroc", "pca", "3", "0.0100", "2", "b", "-0.200,", "a", "+0.010"]
    assert len(head) > 40


def test_a_missing_file_is_named_and_a_damaged_one_with_the_line(tmp_path):
    with pytest.raises(RecordError, match=r"conformal_adbench.csv' not found — .* Novello et al\."):
        load_figures(tmp_path)
    (tmp_path / SCRIPT["FIGURES"]).write_text("dataset,detector,metric,value\nwine,PCA,auroc,x\n", encoding="utf-8")
    (tmp_path / "names.csv").write_text("kind,published,ours,benchmark\ndetector,PCA,pca,\n", encoding="utf-8")
    with pytest.raises(RecordError, match="line 2: found 'x' — allowed: a number"):
        load_figures(tmp_path)
