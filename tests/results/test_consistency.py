"""What a record's parts say of one another: the run id, and the means over sets."""

from dataclasses import replace

import pytest

from openbench.results.leaderboard.consistency import inconsistencies

from .records import full_record, make_record, named


def edited(record, name, key, value):
    return replace(record, metrics={**record.metrics, name: {**record.metrics[name], key: value}})


@pytest.mark.parametrize("side", ["", "full_spectrum/"])
@pytest.mark.parametrize("key", ["auroc", "fpr95", "autc", "conformal_auroc", "n_sets", "n_ood"])
def test_an_edited_mean_is_found_on_either_side(side, key):
    record = full_record()
    assert inconsistencies(record) == ()
    (said,) = inconsistencies(edited(record, f"{side}near", key, record.metrics[f"{side}near"][key] + 1e-6))
    assert said.startswith(f"{side}near.{key} does not follow from its sets")


def test_an_edited_set_is_found_by_its_group():
    (said,) = inconsistencies(edited(make_record(), "a", "auroc", 0.99))
    # The mean of .99 and .92, which is the other set's.
    assert said == "near.auroc does not follow from its sets (0.9 recorded, 0.955 computed)"


def test_unable_in_one_set_is_unable_in_its_group():
    record = make_record()
    (said,) = inconsistencies(edited(record, "a", "fpr95", "unable"))
    assert "near.fpr95" in said
    assert inconsistencies(edited(edited(record, "a", "fpr95", "unable"), "near", "fpr95", "unable")) == ()
    assert len(inconsistencies(edited(record, "near", "fpr95", "unable"))) == 1


def test_numbers_that_are_no_means_stand_for_themselves():
    record = edited(make_record(), "near", "pooled_auroc", 0.123)
    assert inconsistencies(edited(record, "near", "auroc_low", 0.5)) == ()
    assert inconsistencies(edited(record, "near", "auroc", 0.9 + 1e-12)) == ()  # rounding


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_group_cannot_lose_a_set(name):
    record = make_record()
    kept = {key: values for key, values in record.metrics.items() if key != name}
    assert inconsistencies(replace(record, metrics=kept)) == (
        f"near has no sets to follow from: numbers of {name} are missing",
    )


def test_a_set_cannot_lose_the_number_that_it_is_ranked_by():
    record = make_record()
    (said,) = inconsistencies(replace(record, metrics={**record.metrics, "a": {"fpr95": 0.12}}))
    assert said == "near.auroc does not follow from its sets: some of them lack it"


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "0" * 16},
        {"config": {**make_record().config, "seed": 7}},
        {"method": {**make_record().method, "version": 2}},
        {"benchmark": {**make_record().benchmark, "digest": "other"}},
        {"backbone": {**make_record().backbone, "digest": "other"}},
    ],
)
def test_a_run_id_stands_for_what_was_run(change):
    record = replace(make_record(), **change)
    (said,) = inconsistencies(record)
    assert said == f"run id {record.run_id} does not follow from what was run, which gives {named(record).run_id}"


def test_many_wrong_numbers_are_counted():
    record = make_record()
    keys = ("auroc", "fpr95", "x", "y", "z")
    sets = {name: dict.fromkeys(keys, value) for name, value in (("near", 0.5), ("a", 0.1), ("b", 0.1))}
    said = inconsistencies(replace(record, metrics={**record.metrics, **sets}))
    assert len(said) == 4
    assert said[-1] == "near: 2 more numbers do not either"


def test_numbers_are_of_as_many_images_as_the_sets_have():
    record = make_record(counts={**make_record().counts, "id_test/toy": {"n": 100, "expected": 100}})
    assert inconsistencies(record) == ()
    (said,) = inconsistencies(edited(record, "id", "n_id", 9000))
    assert said == "id.n_id is not the number of images in its sets (9000 recorded, 100 counted)"
    (said,) = inconsistencies(edited(record, "a", "n_ood", 9))
    assert said == "a.n_ood is not the number of images in its sets (9 recorded, 5 counted)"


@pytest.mark.parametrize(("role", "told"), [("near", True), ("ood_train", False)])
def test_a_benchmark_as_defined_has_whole_test_sets(role, told):
    record = make_record()
    record = replace(record, counts={**record.counts, f"{role}/a": {"n": 5, "expected": 9000}})
    said = ("benchmark.pristine does not follow from its sets, which lack images: near/a (5 of 9000)",)
    assert inconsistencies(record) == (said if told else ())
    assert inconsistencies(replace(record, benchmark={**record.benchmark, "pristine": False})) == ()
