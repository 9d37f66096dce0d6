"""Trainings, augmentations and outliers, as the leaderboard tells them apart."""

import csv
import io
from dataclasses import replace

import pytest

from openbench.results.leaderboard import ranking
from openbench.results.leaderboard.pages import leaderboard
from openbench.results.records.settings import network_of

from .records import make_record, markdown_table, named


def boards(records):
    return ranking.boards(map(named, records))


def ranked(records):
    return boards(records)[0].ranked


def trained(record, recipe=None, **backbone):
    """The run on a network of another training, augmentation or outliers, or another recipe."""
    config = dict(record.config)
    if recipe is not None:
        config["training"] = {"_name_": "cross_entropy", "recipe": recipe}
    return replace(record, config=config, backbone={**record.backbone, **backbone})


PIXMIX = {"_target_": "PixMix", "rounds": 4, "beta": 3.0, "severity": 3.0, "folder": None}
PIXMIX |= {"drawn": 300, "seed": 0}
CROP = {"_target_": "RandomCrop", "padding": 4}


def test_augmentations_and_outliers_are_rows_with_columns_that_say_so():
    base = make_record()
    records = [base, trained(base, augment="pixmix"), trained(base, augment="mixup"), trained(base, outliers="tin597")]
    rows = markdown_table(leaderboard(boards(records))["toy.md"], "toy")
    shown = sorted((row["augmentation"], row["outliers"]) for row in rows)
    assert shown == [("mixup", "none"), ("none", "none"), ("none", "tin597"), ("pixmix", "none")]


def test_a_page_without_augmentations_has_no_column_for_them_but_its_csv_has():
    files = leaderboard(boards([make_record()]))
    (row,) = markdown_table(files["toy.md"], "toy")
    assert {"augmentation", "outliers"}.isdisjoint(row)
    (row,) = csv.DictReader(io.StringIO(files["toy.csv"]))
    assert (row["augment"], row["outliers"]) == ("none", "none")


def test_the_augmentation_of_an_older_record_is_found_in_its_recipe():
    base = make_record()
    (plain,) = ranked([trained(base, {"augment": [CROP]})])
    (mixed,) = ranked([trained(base, {"augment": [CROP, PIXMIX]})])
    (own,) = ranked([trained(base, {"augment": [CROP, {"_target_": "mine.augment.Sepia", "amount": 0.5}]})])
    assert (plain.augment, mixed.augment, own.augment) == ("none", "pixmix", "sepia")


def test_one_augmentation_with_another_strength_has_another_name():
    base = make_record()
    for recipe, backbone in (({"augment": [CROP, {**PIXMIX, "rounds": 2}]}, {}), (None, {"augment": "pixmix"})):
        again = trained(base, {"augment": [CROP, {**PIXMIX, "rounds": 2}]} if recipe is None else recipe, **backbone)
        rows = ranked([trained(base, {"augment": [CROP, PIXMIX]}, **backbone), again])
        assert sorted(row.augment for row in rows) == ["pixmix", "pixmix (rounds=2)"]


def test_an_augmentation_is_itself_with_the_values_that_it_has_on_any_data():
    node = {"_target_": "RandAugment"}
    named = {}
    for strength in ((1, 14), (1, 10), (2, 9), (1, 9)):
        recipe = {"augment": [CROP, {**node, "operations": strength[0], "magnitude": strength[1]}]}
        ((row,),) = (ranked([trained(make_record(), recipe)]),)
        named[strength] = row.augment
    assert [named[s] for s in ((1, 14), (1, 10), (2, 9))] == ["randaugment"] * 3  # CIFAR, ImageNet-200, ImageNet-1K
    assert named[1, 9] == "randaugment (magnitude=9)"


def test_released_weights_have_no_augmentation_whatever_the_config_says():
    record = trained(make_record(), {"augment": [PIXMIX]}, training=None)
    (row,) = ranked([record])
    assert (row.training, row.augment) == ("released weights", "none")


def test_rows_that_differ_in_the_recipe_only_say_in_what():
    base = make_record()
    rows = ranked([trained(base, {"epochs": epochs, "lr": 0.1}) for epochs in (20, 100)])
    assert sorted(row.settings.partition("training.")[2] for row in rows) == ["recipe.epochs=100", "recipe.epochs=20"]


@pytest.mark.parametrize(
    ("backbone", "shown"),
    [
        ({"training": None, "weights_sha256": "ab", "preprocess": {"crop": 32}}, "net (released weights)"),
        ({"training": "mixoe", "weights_sha256": "ab", "preprocess": {"crop": 32}}, "net (mixoe)"),
        ({"training": None, "weights_sha256": "", "preprocess": {"crop": 1}}, "net"),  # features alone
        ({"training": None, "weights_sha256": "ab", "preprocess": {"crop": 1}}, "net"),  # and a head
        ({"training": None, "weights_sha256": "", "preprocess": {"crop": 32}}, "net"),  # the columns of a table
    ],
)
def test_only_a_network_has_been_trained(backbone, shown):
    assert network_of(replace(make_record(), backbone={"name": "net", **backbone})) == shown
