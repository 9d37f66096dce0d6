"""Who made a record."""

from dataclasses import replace

import pytest

from openbench.errors import RecordError
from openbench.results.records.origin import made_by
from openbench.results.records.store import RecordStore

from .records import make_record

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
