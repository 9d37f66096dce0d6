"""A record as evaluation results of the Hugging Face Hub and as a row for a paper, and who made it."""

import re
from dataclasses import replace

import pytest
import yaml

from openbench.__main__ import main
from openbench.errors import ConfigError, RecordError
from openbench.results.records.exports import eval_results, latex_row
from openbench.results.records.origin import made_by
from openbench.results.records.store import RecordStore

from .records import make_record

REFERENCE = "Sun & Li et al., ICML 2022, arXiv 2204.06507"


@pytest.fixture
def record():
    return make_record(method={"name": "k_nn", "version": 1, "reference": REFERENCE, "params": {"k": 50}})


def test_the_hubs_own_reader_takes_every_number(record):
    hub = pytest.importorskip("huggingface_hub")
    text = eval_results(record, "org/toy", "0a1b", "https://example.org/log", "me")
    entries = hub.parse_eval_result_entries(yaml.safe_load(text))
    assert {entry.task_id: entry.value for entry in entries} == pytest.approx(
        {"near_auroc": 90, "near_fpr95": 10, "far_auroc": 95, "far_fpr95": 5, "id_accuracy": 75}
    )
    assert {(e.dataset_id, e.dataset_revision, e.source_url, e.source_user, e.date) for e in entries} == {
        ("org/toy", "0a1b", "https://example.org/log", "me", "2025-01-01T00:00:00+00:00")
    }
    assert "95 % interval [89.00, 91.00]" in entries[0].notes
    assert "&" not in text  # no aliases


@pytest.mark.parametrize(
    ("reference", "year"),
    [("A, ICML 2022, arXiv 2007.05199", "2022"), ("A, arXiv 2007.05199", "2020"), ("A, arXiv 2306.09301", "2023")],
)
def test_the_year_of_a_citation_is_not_the_beginning_of_an_arxiv_id(reference, year):
    row = latex_row(make_record(method={"name": "knn", "version": 1, "reference": reference, "params": {}}))
    assert (f"@misc{{knn{year},\n" in row, f"  year = {{{year}}},\n" in row) == (True, True)


def test_a_benchmark_that_is_not_whole_says_so():
    whole = {"name": "toy", "digest": "aaaa", "pristine": False, "deviations": ["far.c: dropped"]}
    assert "not the benchmark as defined: far.c: dropped" in eval_results(make_record(benchmark=whole), "org/toy")


def test_what_the_hub_needs_is_asked_for(record):
    with pytest.raises(ConfigError, match="is missing — name it: --dataset ORG/NAME"):
        eval_results(record, "")
    with pytest.raises(ConfigError, match="add --source URL"):
        eval_results(record, "org/toy", user="me")


def test_the_row_cites_the_entry_below_it(record):
    header, row, _, *entry = latex_row(record).splitlines()
    assert header == "% method & near AUROC & near FPR@95 & far AUROC & far FPR@95 & ID accuracy"
    assert row == r"k\_nn~\cite{knn2022} & 90.00 & 10.00 & 95.00 & 5.00 & 75.00 \\"
    assert entry[0] == "@misc{knn2022,"
    assert "  author = {Sun and Li and others}," in entry
    assert "  eprint = {2204.06507}," in entry
    assert r"Sun \& Li" in entry[-2]
    text = "\n".join(entry)
    assert text.count("{") == text.count("}")


def test_a_method_without_reference_is_not_cited():
    about = {"name": "mine", "version": 1, "reference": "", "params": {}}
    assert not re.search("cite|@misc", latex_row(make_record(method=about)))


def test_show_prints_both(record, tmp_path, capsys):
    RecordStore(tmp_path).write(record)
    command = ["show", "record", record.run_id, "--results", str(tmp_path), "--format"]
    assert main([*command, "latex-row"]) == 0
    assert capsys.readouterr().out == latex_row(record)
    assert main([*command, "eval-results", "--dataset", "org/toy"]) == 0
    assert capsys.readouterr().out == eval_results(record, "org/toy")
    assert main([*command, "eval-results"]) == 2


RUN = {"openbench": "0.1.0", "git_sha": "a" * 40, "git_dirty": True, "utc": "2026-01-01"}
AGAIN = {"openbench": "0.2.0", "git_sha": "b" * 40, "utc": "2026-02-02"}


def test_who_computed_prediction_sets_again_is_named_beside_who_made_the_run():
    plain = replace(make_record(), provenance=RUN)
    assert made_by(plain) == "openbench 0.1.0, commit aaaaaaaaaaaa with changes, 2026-01-01"
    both = replace(plain, provenance={**RUN, "prediction_sets": AGAIN})
    again = "; prediction sets by openbench 0.2.0, commit bbbbbbbbbbbb, 2026-02-02"
    assert made_by(both) == made_by(plain) + again


def test_what_is_said_of_prediction_sets_is_words(tmp_path):
    wrong = replace(make_record(), provenance={**RUN, "prediction_sets": {"utc": 3}})
    with pytest.raises(RecordError, match="prediction_sets"):
        RecordStore(tmp_path).write(wrong)
